"""A parameter server that says what a test wants, and a device that follows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from brokers import WAIT_S

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import Downlink
from edge_agent.events import Events
from edge_agent.policies.policy_saver import PolicySaver
from edge_agent.policies.policy_store import PolicyStore
from shoal.identity import Identity
from shoal.policy import Manifest, split
from shoal.spaces import EnvSpec
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki.pki import FleetPki

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
    """Sends what the test says, when the test says so.

    Attributes:
        follows: Whether it knows `Follow`, or is of before.
        followed: How many streams it was followed by.
    """

    def __init__(self, *, follows: bool) -> None:
        self.follows = follows
        self.followed = 0
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
        await self._hear(request)
        await self.answers.wait()
        return pb.ReportActiveResponse()

    async def _hear(self, report: pb.ReportActiveRequest) -> None:
        async with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    async def Follow(  # noqa: N802 - the name in the proto
        self, request_iterator: AsyncIterator[pb.FollowRequest], context: Context
    ) -> AsyncIterator[pb.Part]:
        if not self.follows:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.followed += 1
        requests = aiter(request_iterator)
        watch = (await anext(requests)).watch

        async def hear() -> None:
            async for request in requests:
                await self._hear(request.active)

        hearing = asyncio.ensure_future(hear())
        try:
            async for part in self.Watch(watch, context):
                yield part
        finally:
            hearing.cancel()

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


@asynccontextmanager
async def served(pki: FleetPki, port: int, *, follows: bool = True) -> AsyncIterator[Server]:
    pems = Identity.load(pki.directory / "identities" / "server").read_pems()
    credentials = grpc.ssl_server_credentials([(pems.key, pems.cert)], pems.ca, True)  # noqa: FBT003
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    servicer = Server(follows=follows)
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
    pki: FleetPki,
    port: int,
    directory: Path,
    publisher: Publisher,
    *,
    identity: Path | None = None,
    clock: Callable[[], float] = time.time,
    clock_again_s: float = 60.0,
) -> AsyncIterator[Device]:
    events = Events(DEVICE, bytes(16), clock=time.time)
    who = Identity.load(identity or pki.directory / "identities" / DEVICE)
    with PolicyStore(
        directory, fleet=FLEET, public_key=publisher.public_key, spec=publisher.spec, clock=clock
    ) as policies:
        downlink = Downlink(
            ServerConfig(port=port),
            who,
            policies,
            events,
            fleet=FLEET,
            run_id=RUN_ID,
            clock_again_s=clock_again_s,
        )
        saver = PolicySaver(policies, delay_s=0.0)
        following = asyncio.gather(downlink.follow(), downlink.report_active(), saver.serve())
        try:
            yield Device(downlink, policies, events)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def served_first(server: Server, it: Device, first: Signed) -> None:
    server.graphs[first.manifest.graph_digest] = first.graph
    server.push(first.bundle, first.manifest.version)
    await it.event("policy_swapped")
