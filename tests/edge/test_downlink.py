"""The downlink against a real gRPC server with mutual TLS: policies come, and it never dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np
import pytest
from brokers import WAIT_S, free_port
from mqtt_learner import asyncs

from edge_agent.config import ServerConfig
from edge_agent.downlink import Downlink, reach
from edge_agent.events import Events
from edge_agent.policy import Policy
from edge_agent.policy_store import PolicyStore
from shoal.delta import encode_delta
from shoal.errors import ConnectionFailed
from shoal.identity import Identity
from shoal.policy import MAX_BUNDLE_BYTES, Manifest, decode_bundle, sha256, split
from shoal.policy_delta import Base, PolicyDelta, encode_policy_delta
from shoal.spaces import EnvSpec
from shoal.tensors import encode_tensors
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import tensor_pb2
from shoal.wire import frame
from shoalctl.pki import FleetPki, Role

FLEET = "pond"
DEVICE = "pi-1"
RUN_ID = bytes(range(16))
Context = grpc.aio.ServicerContext[Any, Any]


class Signed(Protocol):
    @property
    def manifest(self) -> Manifest: ...
    @property
    def bundle(self) -> bytes: ...
    @property
    def graph(self) -> bytes: ...


class Publisher(Protocol):
    """The fixture of that name."""

    @property
    def public_key(self) -> bytes: ...
    @property
    def spec(self) -> EnvSpec: ...
    def weights(self, seed: int = 0) -> object: ...
    def publish(
        self, version: int, *, weights: object = None, tensors_digest: bytes = ...
    ) -> Signed: ...


class Server(rpc.ParameterServerServicer):
    """Sends what the test says, when the test says so."""

    def __init__(self) -> None:
        self.requests: list[pb.WatchRequest] = []
        self.reports: list[pb.ReportActiveRequest] = []
        self.graphs: dict[bytes, bytes] = {}
        self.graph_calls = 0
        self.newest = pb.Part()
        self.parts: asyncio.Queue[list[pb.Part]] = asyncio.Queue()
        self.ended = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self._changed = asyncio.Condition()

    async def watched(self, times: int) -> None:
        """Waits for this watch to begin and for the one before it to have ended."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(
                lambda: len(self.requests) == times and self.ended == times - 1
            )

    def push(
        self,
        payload: bytes,
        version: int = 1,
        part_bytes: int = 1000,
        *,
        kind: pb.PayloadKind = pb.PAYLOAD_KIND_UNSPECIFIED,
    ) -> None:
        self.parts.put_nowait(
            [
                pb.Part(
                    version=version,
                    total_bytes=p.total_bytes,
                    offset=p.offset,
                    data=p.data,
                    kind=kind,
                )
                for p in split(payload, part_bytes)
            ]
        )

    async def reported(self, version: int, *, more_than: int = 0) -> None:
        """Waits until a device says that it acts with a version."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(
                lambda: len(self.reports) > more_than and self.reports[-1].version == version
            )

    async def ReportActive(  # noqa: N802 - the name in the proto
        self, request: pb.ReportActiveRequest, context: Context
    ) -> pb.ReportActiveResponse:
        async with self._changed:
            self.reports.append(request)
            self._changed.notify_all()
        await self.answers.wait()
        return pb.ReportActiveResponse()

    async def Watch(  # noqa: N802 - the name in the proto
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        self.requests.append(request)
        try:
            while True:
                async with self._changed:
                    self._changed.notify_all()
                for part in await self.parts.get():
                    yield part
        finally:
            self.ended += 1
            async with self._changed:
                self._changed.notify_all()

    async def GetGraph(  # noqa: N802 - the name in the proto
        self, request: pb.GetGraphRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        self.graph_calls += 1
        graph = self.graphs.get(request.digest)
        if graph is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such graph")
        for p in split(graph or b"", 100):
            yield pb.Part(total_bytes=p.total_bytes, offset=p.offset, data=p.data)

    async def GetPolicy(  # noqa: N802 - the name in the proto
        self, request: pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        if request.fleet != FLEET:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is of another fleet")
        if not self.newest.total_bytes:
            await context.abort(grpc.StatusCode.NOT_FOUND, "none is published yet")
        yield self.newest


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> FleetPki:
    made = FleetPki.create(tmp_path_factory.mktemp("pki") / "pki", FLEET)
    made.issue("server", Role.SERVER)
    made.issue(DEVICE, Role.DEVICE)
    return made


@asynccontextmanager
async def served(pki: FleetPki, port: int) -> AsyncIterator[Server]:
    pems = Identity.load(pki.directory / "identities" / "server").read_pems()
    credentials = grpc.ssl_server_credentials([(pems.key, pems.cert)], pems.ca, True)  # noqa: FBT003
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    servicer = Server()
    rpc.add_ParameterServerServicer_to_server(servicer, server)
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(None)


class Device:
    """A downlink that follows, a store, and the events it tells."""

    def __init__(self, downlink: Downlink, policies: PolicyStore, events: Events) -> None:
        self.downlink = downlink
        self.policies = policies
        self.events = events
        self.seen: list[str] = []

    async def event(self, name: str) -> dict[str, str]:
        """The fields of the next event of that name."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        with self.events.listening(lambda: loop.call_soon_threadsafe(news.set)):
            async with asyncio.timeout(WAIT_S):
                while True:
                    for event in self.events.take():
                        self.seen.append(event.name)
                        if event.name == name:
                            return {**event.fields, "message": event.message}
                    await news.wait()
                    news.clear()


@asynccontextmanager
async def device(
    pki: FleetPki, port: int, directory: Path, publisher: Publisher, *, identity: Path | None = None
) -> AsyncIterator[Device]:
    events = Events(DEVICE, bytes(16), clock=time.time)
    who = Identity.load(identity or pki.directory / "identities" / DEVICE)
    with PolicyStore(
        directory, fleet=FLEET, public_key=publisher.public_key, spec=publisher.spec
    ) as policies:
        downlink = Downlink(
            ServerConfig(port=port), who, policies, events, fleet=FLEET, run_id=RUN_ID
        )
        following = asyncio.gather(downlink.follow(), downlink.report_active())
        try:
            yield Device(downlink, policies, events)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@asyncs
async def test_a_report_whose_connection_goes_away_under_it_is_made_again_over_the_next(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.answers.clear()
        published = publisher.publish(1, weights=publisher.weights(0))
        server.graphs[published.manifest.graph_digest] = published.graph
        server.push(published.bundle, 1)
        await server.reported(1)
        senseless = pb.Part(version=2, total_bytes=9, offset=5, data=b"x")
        server.parts.put_nowait([senseless])  # the device closes the connection
        await it.event("parameter_server_lost")
        server.answers.set()
        reports = len(server.reports)
        await server.reported(1, more_than=reports)


@asyncs
async def test_a_pushed_policy_becomes_current_and_its_graph_is_fetched_once(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        for version in (1, 2):
            published = publisher.publish(version, weights=publisher.weights(0))
            server.graphs[published.manifest.graph_digest] = published.graph
            server.push(published.bundle, version)
            swapped = await asyncio.to_thread(it.policies.wait_newer, version - 1, WAIT_S)
            assert swapped is not None
        assert (await it.event("policy_swapped"))["policy_version"] == "1"
        assert not it.events.take()  # the swaps that follow are routine: telemetry counts them
        assert it.policies.current is not None
        assert it.policies.current.version == 2
        assert server.graph_calls == 1
        assert it.downlink.bytes_down > len(published.bundle)
        assert (server.requests[0].fleet, server.requests[0].device_id) == (FLEET, DEVICE)
        assert server.requests[0].have_version == 0


@asyncs
async def test_after_a_lost_server_it_asks_for_what_is_newer(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    published = publisher.publish(5)
    async with device(pki, port, tmp_path, publisher) as it:
        async with served(pki, port) as server:
            server.graphs[published.manifest.graph_digest] = published.graph
            server.push(published.bundle)
            await it.event("policy_swapped")
        await it.event("parameter_server_lost")
        async with served(pki, port) as server:
            newer = publisher.publish(6)
            server.graphs[newer.manifest.graph_digest] = newer.graph
            server.push(newer.bundle)
            assert (await it.event("policy_swapped"))["policy_version"] == "6"
            assert "parameter_server_back" in it.seen
            assert server.requests[0].have_version == 5
            assert server.requests[0].have_digest == published.manifest.digest


@asyncs
async def test_a_policy_that_is_not_signed_right_is_told_and_the_next_one_taken(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, foreign: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.push(foreign.publish(1).bundle)
        assert (await it.event("policy_rejected"))["reason"] == "signature"
        good = publisher.publish(2)
        server.graphs[good.manifest.graph_digest] = good.graph
        server.push(good.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_a_graph_that_cannot_be_had_is_told_and_watching_goes_on(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        lost = publisher.publish(1)
        server.push(lost.bundle)
        assert "not_found" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(2)
        server.graphs[lost.manifest.graph_digest] = lost.graph
        server.push(lost.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_parts_that_do_not_fit_together_are_told_and_watching_goes_on(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    good = publisher.publish(1)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.graphs[good.manifest.graph_digest] = good.graph
        server.parts.put_nowait([pb.Part(total_bytes=MAX_BUNDLE_BYTES + 1, data=b"x")])
        assert "limit" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(2)
        server.parts.put_nowait([pb.Part(total_bytes=10, offset=5, data=b"x")])
        assert "expected" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(3)
        server.push(good.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_a_server_of_another_fleet_is_not_trusted(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    other = FleetPki.create(tmp_path / "other", FLEET)
    stranger = other.issue(DEVICE, Role.DEVICE)
    port = free_port()
    async with (
        served(pki, port) as server,
        device(pki, port, tmp_path / "policies", publisher, identity=stranger) as it,
    ):
        await it.event("parameter_server_lost")
        assert server.requests == []
        with pytest.raises(ConnectionFailed, match="not trusted"):
            await reach(
                ServerConfig(port=port), Identity.load(stranger), fleet=FLEET, timeout_s=WAIT_S
            )


@asyncs
async def test_a_check_finds_a_server_that_is_there_and_misses_one_that_is_not(
    pki: FleetPki, tmp_path: Path
) -> None:
    port = free_port()
    who = Identity.load(pki.directory / "identities" / DEVICE)
    config = ServerConfig(port=port)
    async with served(pki, port) as server:
        assert await reach(config, who, fleet=FLEET, timeout_s=WAIT_S) == 0
        server.newest = pb.Part(version=4, total_bytes=2, data=b"x")
        assert await reach(config, who, fleet=FLEET, timeout_s=WAIT_S) == 4
        with pytest.raises(ConnectionFailed, match="of another fleet"):
            await reach(config, who, fleet="other", timeout_s=WAIT_S)
    with pytest.raises(ConnectionFailed, match="nothing listens there"):
        await reach(config, who, fleet=FLEET, timeout_s=WAIT_S)


# ------------------------------------------------------------------------------------------- deltas


def delta_of(base: Signed, target: Signed, *, tensors: bytes | None = None) -> bytes:
    """What turns one into the other; `tensors` replace the coded ones."""
    delta = PolicyDelta.between(decode_bundle(base.bundle), decode_bundle(target.bundle))
    return encode_policy_delta(delta if tensors is None else replace(delta, tensors=tensors))


async def served_first(server: Server, it: Device, first: Signed) -> None:
    server.graphs[first.manifest.graph_digest] = first.graph
    server.push(first.bundle, first.manifest.version)
    await it.event("policy_swapped")


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
        server.push(delta_of(first, second), 2, kind=pb.PAYLOAD_KIND_DELTA)
        assert (await newer(it, 1)).digest == second.manifest.digest
        held = it.policies.held(Base.of(second.manifest))
        assert held is not None
        assert encode_tensors(held.tensors) == decode_bundle(second.bundle).tensors
        assert len(server.requests) == 1


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


@asyncs
async def test_what_acts_is_reported_at_once_and_after_a_refusal(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, foreign: Publisher
) -> None:
    port = free_port()
    first = publisher.publish(1)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        await server.reported(1)
        told = server.reports[-1]
        assert (told.fleet, told.device_id, told.run_id) == (FLEET, DEVICE, RUN_ID)
        assert told.digest == first.manifest.digest
        before = len(server.reports)
        server.push(foreign.publish(2).bundle, 2)
        await it.event("policy_rejected")
        await server.reported(1, more_than=before)
        policy = it.policies.current
        assert policy is not None
        await asyncio.to_thread(it.policies.condemn, policy, "non_finite")
        await server.reported(0)


def saved(directory: Path, version: int) -> bool:
    return any(directory.glob(f"*/{version:020d}-*.bundle"))


@asyncs
async def test_a_policy_acts_before_it_is_on_disk_and_is_reported_only_then(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, publisher.publish(1))
        await server.reported(1)
        before, may_save, save = len(server.reports), threading.Event(), it.policies.save

        def save_later() -> None:
            assert may_save.wait(WAIT_S)
            save()

        monkeypatch.setattr(it.policies, "save", save_later)
        server.push(publisher.publish(2).bundle, 2)
        acting = await asyncio.to_thread(it.policies.wait_newer, 1, WAIT_S)
        assert acting is not None
        assert not saved(tmp_path, 2)
        assert len(server.reports) == before
        may_save.set()
        await server.reported(2)
        assert saved(tmp_path, 2)
