"""The downlink against a real gRPC server with mutual TLS: policies come, and it never dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import pytest
from brokers import WAIT_S, free_port
from mqtt_learner import asyncs

from edge_agent.config import ServerConfig
from edge_agent.downlink import Downlink, reach
from edge_agent.events import Events
from edge_agent.policy_store import PolicyStore
from shoal.errors import ConnectionFailed
from shoal.identity import Identity
from shoal.policy import MAX_BUNDLE_BYTES, Manifest, split
from shoal.spaces import EnvSpec
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki import FleetPki, Role

FLEET = "pond"
DEVICE = "pi-1"
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
    def publish(self, version: int, *, weights: object = None) -> Signed: ...


class Server(rpc.ParameterServerServicer):
    """Sends what the test says, when the test says so."""

    def __init__(self) -> None:
        self.requests: list[pb.WatchRequest] = []
        self.graphs: dict[bytes, bytes] = {}
        self.graph_calls = 0
        self.newest = pb.Part()
        self.parts: asyncio.Queue[list[pb.Part]] = asyncio.Queue()
        self.ended = 0
        self._changed = asyncio.Condition()

    async def watched(self, times: int) -> None:
        """Waits for this watch to begin and for the one before it to have ended."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(
                lambda: len(self.requests) == times and self.ended == times - 1
            )

    def push(self, payload: bytes, version: int = 1, part_bytes: int = 1000) -> None:
        self.parts.put_nowait(
            [
                pb.Part(version=version, total_bytes=p.total_bytes, offset=p.offset, data=p.data)
                for p in split(payload, part_bytes)
            ]
        )

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
        downlink = Downlink(ServerConfig(port=port), who, policies, events, fleet=FLEET)
        following = asyncio.ensure_future(downlink.follow())
        try:
            yield Device(downlink, policies, events)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


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
