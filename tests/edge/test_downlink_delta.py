"""Deltas on the way down: taken, refused, gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brokers import WAIT_S, free_port
from mqtt_learner import asyncs
from policy_server import DEVICE, FLEET, Device, Publisher, Signed, device, served, served_first

from edge_agent.policies.policy import Policy
from shoal.delta import encode_delta
from shoal.policy import decode_bundle, sha256
from shoal.policy_delta import Base, PolicyDelta, compress_policy_delta, encode_policy_delta
from shoal.streams import LeaveRaw
from shoal.tensors import encode_tensors
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import tensor_pb2
from shoal.wire import frame
from shoalctl.pki.pki import FleetPki, Role


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> FleetPki:
    made = FleetPki.create(tmp_path_factory.mktemp("pki") / "pki", FLEET)
    made.issue("server", Role.SERVER)
    made.issue(DEVICE, Role.DEVICE)
    return made


def delta_of(base: Signed, target: Signed, *, tensors: bytes | None = None) -> bytes:
    """What turns one into the other; `tensors` replace the coded ones."""
    delta = PolicyDelta.between(decode_bundle(base.bundle), decode_bundle(target.bundle))
    return encode_policy_delta(delta if tensors is None else replace(delta, tensors=tensors))


async def newer(it: Device, version: int) -> Policy:
    """The policy that is newer than a version."""
    policy = await asyncio.to_thread(it.policies.wait_newer, version, WAIT_S)
    assert policy is not None
    return policy


@asyncs
async def test_a_delta_becomes_the_very_policy_that_was_signed(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    first, second = (publisher.publish(v, weights=publisher.weights(v)) for v in (1, 2))
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        assert server.requests[0].accepts_delta
        assert server.requests[0].accepts_compressed_delta
        server.push(delta_of(first, second), 2, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await newer(it, 1)).digest == second.manifest.digest
        held = it.policies.held(Base.of(second.manifest))
        assert held is not None
        assert encode_tensors(held.tensors) == decode_bundle(second.bundle).tensors
        assert len(server.requests) == 1


@asyncs
async def test_a_compressed_delta_becomes_it_too(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    first, second = (publisher.publish(v, weights=publisher.weights(v)) for v in (1, 2))
    before, after = decode_bundle(first.bundle), decode_bundle(second.bundle)
    payload = compress_policy_delta(PolicyDelta.between(before, after, packer=LeaveRaw()))
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        server.push(payload, 2, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await newer(it, 1)).digest == second.manifest.digest
        damaged = payload[:-2] + bytes([payload[-2] ^ 1]) + payload[-1:]
        server.push(damaged, 3, kind=pb.PAYLOAD_KIND_DELTA)
        await it.event("delta_refused")
        await server.watched(2)
        assert not server.requests[1].accepts_delta


@asyncs
async def test_a_delta_from_a_version_that_is_not_held_is_counted_told_and_made_good(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    first, lost, third, fourth = (publisher.publish(v) for v in (1, 2, 3, 4))
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        server.push(delta_of(lost, third), 3, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await it.event("delta_refused"))["reason"] == "base"
        await server.watched(2)
        assert not server.requests[1].accepts_delta
        assert it.policies.rejections == {"base": 1}
        server.push(third.bundle, 3)
        await newer(it, 1)
        await server.watched(3)  # deltas are welcome again
        assert server.requests[2].accepts_delta
        assert server.requests[2].have_version == 3
        server.push(delta_of(third, fourth), 4, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await newer(it, 3)).version == 4


HOSTILE: dict[str, Callable[[Signed, Signed], bytes]] = {
    "malformed": lambda base, target: b"\xff" * 40,
    "cut": lambda base, target: delta_of(base, target)[:-9],
    "of another base": lambda base, target: delta_of(
        base, target, tensors=encode_delta({"w0": np.zeros(3, np.int8)}, {})
    ),
    "of other tensors": lambda base, target: delta_of(base, target, tensors=encode_delta({}, {})),
    "too large": lambda base, target: delta_of(
        base,
        target,
        tensors=frame(
            tensor_pb2.TensorSetDelta(
                tensors=[
                    tensor_pb2.TensorDelta(
                        name="w",
                        coding=tensor_pb2.TENSOR_CODING_WHOLE,
                        dtype=tensor_pb2.D_TYPE_INT8,
                        shape=[2**31, 2**31],
                        stream_bytes=[0],
                    )
                ]
            )
        ),
    ),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
@asyncs
async def test_a_hostile_delta_is_refused_and_the_whole_policy_asked_for(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, kind: str
) -> None:
    port = free_port()
    first, second = publisher.publish(1), publisher.publish(2)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        server.push(HOSTILE[kind](first, second), 2, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await it.event("delta_refused"))["reason"] in {"delta", "digest"}
        assert it.policies.rejections.total() == 1
        assert it.policies.current is not None
        assert it.policies.current.version == 1
        await server.watched(2)
        assert not server.requests[1].accepts_delta
        server.push(second.bundle, 2)
        assert (await newer(it, 1)).digest == second.manifest.digest


@asyncs
async def test_a_delta_that_nobody_else_signed_is_refused_and_nothing_more_is_asked_for(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, foreign: Publisher
) -> None:
    port = free_port()
    first = publisher.publish(1)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        forged = delta_of(first, foreign.publish(2))
        server.push(forged, 2, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await it.event("policy_rejected"))["reason"] == "signature"
        assert len(server.requests) == 1


@asyncs
async def test_a_policy_that_is_refused_whole_too_is_not_asked_for_again_and_again(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    first, third = publisher.publish(1), publisher.publish(3)
    broken = publisher.publish(2, tensors_digest=bytes(32))
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        server.push(delta_of(first, broken), 2, kind=pb.PAYLOAD_KIND_DELTA)
        await it.event("delta_refused")
        await server.watched(2)
        server.push(broken.bundle, 2)
        assert (await it.event("policy_rejected"))["reason"] == "digest"
        server.push(third.bundle, 3)
        await newer(it, 1)
        assert len(server.requests) <= 3


@asyncs
async def test_a_transfer_that_broke_off_is_gone_on_with(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    good = publisher.publish(1)
    payload, digest = good.bundle, sha256(good.bundle)
    async with device(pki, port, tmp_path, publisher) as it:
        async with served(pki, port) as server:
            server.graphs[good.manifest.graph_digest] = good.graph
            server.parts.put_nowait(
                [pb.Part(version=1, total_bytes=len(payload), data=payload[:700], digest=digest)]
            )
            while it.downlink.bytes_down < 700:  # noqa: ASYNC110 - it lies behind a connection
                await asyncio.sleep(0)
        async with served(pki, port) as server:
            server.graphs[good.manifest.graph_digest] = good.graph
            await server.watched(1)
            asked = server.requests[0]
            assert (asked.partial_digest, asked.partial_bytes) == (digest, 700)
            rest = pb.Part(
                version=1, total_bytes=len(payload), offset=700, data=payload[700:], digest=digest
            )
            server.parts.put_nowait([rest])
            assert (await newer(it, 0)).version == 1
