"""Deltas and resumed transfers, as a parameter server sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parameter_cloud import DEADLINE_S, LARGE, PATIENCE_S, Cloud, Play, Scenario, eventually

from cloud_learner.downlink import refresh
from cloud_learner.downlink.parameter_server import (
    ParameterServer,
)
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.policy_source import PolicySource
from cloud_learner.downlink.published import Published
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.identity import Identity
from shoal.policy import (
    PART_BYTES,
    decode_bundle,
    encode_bundle,
    sha256,
)
from shoal.policy_delta import Base, Content, decode_policy_delta
from shoal.v1 import parameter_server_pb2 as pb
from shoal.zstd import is_frame
from shoalctl.pki.pki import FleetPki, Role


@pytest.fixture
def play(tmp_path: Path) -> Play:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)

    @asynccontextmanager
    async def cloud() -> AsyncIterator[Cloud]:
        with PolicyLog(tmp_path / "policies", Ed25519PrivateKey.generate(), "reef") as log:
            ahead: list[int] = []
            server = ParameterServer(
                log, fleet="reef", note_version=ahead.append, patience_s=PATIENCE_S
            )
            async with GrpcServer("127.0.0.1", 0, identity, [server]) as endpoint:
                there = Cloud(pki, log, server, endpoint.port, ahead)
                async with there.stack:
                    yield there
            await eventually(lambda: server.watchers == 0)

    async def perform(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_S), cloud() as there:
            await scenario(there)

    return lambda scenario: asyncio.run(perform(scenario))


def restored(payload: bytes, base: Published) -> bytes:
    """What a device makes of a delta."""
    return decode_policy_delta(payload).restore(Content.of(decode_bundle(base.bundle)))


def test_who_has_the_base_and_can_use_it_gets_what_changed_others_get_all(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        new, old, able = [await cloud.device(f"pi-{n}") for n in range(3)]
        watches = (
            new.watch(deltas=True),
            old.watch(1, digest=first.digest),
            able.watch(1, digest=first.digest, deltas=True),
        )
        await watches[0].payload()
        await eventually(lambda: cloud.server.watchers == 3)
        second = cloud.step()
        whole, delta = await watches[1].payload(), await watches[2].payload()
        assert (watches[1].kind, whole) == (pb.PAYLOAD_KIND_UNSPECIFIED, second.bundle)
        assert watches[2].kind == pb.PAYLOAD_KIND_DELTA
        assert restored(delta, first) == second.bundle
        assert len(delta) < len(whole) / 100
        assert cloud.server.traffic("pi-2").bytes_down == len(delta)

    play(scenario)


def test_the_next_delta_starts_from_what_a_device_says_that_it_acts_with(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = device.watch(deltas=True)
        await watch.payload()
        await device.report(1, first.digest)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle
        await device.report(2, second.digest)
        third = cloud.step()
        assert restored(await watch.payload(), second) == third.bundle
        active = cloud.server.active("pi-1")
        assert active is not None
        assert (active.base.version, active.run_id) == (2, bytes(16))

    play(scenario)


def test_a_device_that_never_reports_is_waited_for_but_not_for_ever(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        for _ in range(3):
            newest = cloud.step()
            assert restored(await watch.payload(), first) == newest.bundle

    play(scenario)


def test_a_report_that_comes_late_answers_nothing_and_a_refusal_does(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cloud: Cloud) -> None:
        monkeypatch.setattr(cloud.server, "_patience_s", DEADLINE_S)
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = device.watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle
        third = cloud.step()
        await device.report(1, first.digest, handled=1)
        reading = asyncio.ensure_future(watch.payload())
        await device.graph(second.manifest.graph_digest).payload()  # time enough to be sent
        assert not reading.done()
        await device.report(1, first.digest, handled=2)  # it refused the second
        assert restored(await reading, first) == third.bundle

    play(scenario)


def test_a_base_that_is_unknown_or_of_another_log_gets_all(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        for version, digest in ((1, bytes(32)), (0, first.digest)):
            watch = (await cloud.device(f"pi-{version}")).watch(version, digest=digest, deltas=True)
            await eventually(lambda: cloud.server.watchers == 1)
            newest = cloud.step()
            while watch.version < newest.version:
                payload = await watch.payload()
            assert payload == newest.bundle
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)

    play(scenario)


def test_a_delta_that_saves_nothing_is_not_sent(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "encode_policy_delta", lambda delta: bytes(10_000))

    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.publish()
        assert await watch.payload() == second.bundle

    play(scenario)


def test_one_encoding_is_made_for_all_who_have_the_same_base(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, bool]] = []
    make = refresh._make

    def counted(
        published: Published, policies: PolicySource, base: Base, *, compressed: bool
    ) -> refresh.Refresh:
        made.append((published.version, compressed))
        return make(published, policies, base, compressed=compressed)

    monkeypatch.setattr(refresh, "_make", counted)

    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        devices = [await cloud.device(f"pi-{number}") for number in range(20)]
        watches = [
            each.watch(1, digest=first.digest, deltas=True, compressed=number % 2 > 0)
            for number, each in enumerate(devices)
        ]
        await eventually(lambda: cloud.server.watchers == 20)
        second = cloud.step()
        payloads = await asyncio.gather(*(watch.payload() for watch in watches))
        assert len(set(payloads)) == 2
        assert [is_frame(payload) for payload in payloads] == [False, True] * 10
        for payload in payloads[:2]:
            assert restored(payload, first) == second.bundle
        assert sorted(made) == [(2, False), (2, True)]

    play(scenario)


def test_a_transfer_that_broke_off_goes_on_where_it_stopped(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish(LARGE)
        device = await cloud.device("pi-1")
        begun = device.watch()
        assert await begun.part() is None
        begun.call.cancel()
        for have in (PART_BYTES, PART_BYTES + 100, 7):
            rest = device.watch(partial=(begun.digest, have))
            read = bytearray(first.bundle[:have])
            while len(read) < len(first.bundle):
                part = await rest.call.read()
                assert isinstance(part, pb.Part)
                assert (part.offset, part.digest) == (len(read), sha256(first.bundle))
                read += part.data
            assert bytes(read) == first.bundle
            rest.call.cancel()
        second = cloud.publish(LARGE)  # what was begun is not what is sent any more
        assert await device.watch(partial=(begun.digest, PART_BYTES)).payload() == second.bundle
        for have in (0, len(second.bundle), 2**63):
            whole = device.watch(partial=(sha256(second.bundle), have))
            assert await whole.payload() == second.bundle

    play(scenario)


def test_reports_are_of_the_caller_itself_and_well_formed(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        for call, code in (
            (device.report(1, bytes(32), name="pi-2"), grpc.StatusCode.PERMISSION_DENIED),
            (device.report(1, b"short"), grpc.StatusCode.INVALID_ARGUMENT),
            (device.report(2**63, bytes(32)), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is code
        assert cloud.server.active("pi-2") is None

    play(scenario)


def test_weights_that_did_not_change_cost_less_than_a_kilobyte(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        weight = np.zeros(100_000, np.int8)
        first = cloud.publish(weight=weight.copy())
        watch = (await cloud.device("pi-1")).watch(1, digest=first.digest, deltas=True)
        await eventually(lambda: cloud.server.watchers == 1)
        bundle = decode_bundle(first.bundle)
        again = cloud.publish(weight=weight.copy() - (np.arange(100_000) < 1).astype(np.int8))
        assert decode_bundle(again.bundle).tensors == bundle.tensors
        assert len(await watch.payload()) < 1000
        assert encode_bundle(bundle) == first.bundle

    play(scenario)
