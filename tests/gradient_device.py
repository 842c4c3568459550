"""The gradient uplink of a device beside a server that says what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from brokers import WAIT_S, free_port
from strategies import RUN_ID, cartpole_spec, make_chunk

from edge_agent.config import ServerConfig
from edge_agent.events import Events
from edge_agent.gradients.config import GradientsConfig
from edge_agent.gradients.queue import GradientQueue
from edge_agent.gradients.uplink import GradientUplink
from shoal.acting_normalizer import ActingNormalizer
from shoal.gradients import Computed, Weights, encode_weights
from shoal.identity import Identity
from shoal.policy import split
from shoal.trajectory import Chunk
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2
from shoalctl.pki.pki import FleetPki, Role

FLEET, DEVICE = "pond", "pi-1"
SPEC = cartpole_spec()
PARAMETERS = 300
Context = grpc.aio.ServicerContext[Any, Any]


class Server(rpc.ParameterServerServicer):
    """Counts updates, and answers as a test says."""

    def __init__(self) -> None:
        self.updates = 1
        self.digest = bytes(32)
        self.parameters = PARAMETERS
        self.normalizes = self.changes = False
        self.asked: list[int] = []
        self.acted: list[int] = []
        self.pushed: list[update_pb2.PushUpdateRequest] = []
        self.answers: list[str] = []
        """Of the next updates: "" applies, "lost" applies and fails, else why it is refused."""
        self._changed = asyncio.Condition()

    async def until(self, pushed: int) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.pushed) >= pushed)

    async def GetWeights(  # noqa: N802 - the name in the proto
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        self.asked.append(request.have_updates)
        self.acted.append(request.acted_version)
        if request.have_updates == self.updates:
            return
        values = np.full(self.parameters, self.updates, np.float32)
        acting = None
        if self.normalizes:
            version = self.updates if self.changes else request.acted_version
            floats = np.full(4, version, np.float32)
            acting = ActingNormalizer(version, floats, floats)
        weights = Weights(self.digest, self.updates, values, {"algorithm": "a:B"}, acting)
        for p in split(encode_weights(weights), 500):
            yield pb.Part(total_bytes=p.total_bytes, offset=p.offset, data=p.data)

    async def PushUpdate(  # noqa: N802 - the name in the proto
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        answer = self.answers.pop(0) if self.answers else ""
        async with self._changed:
            self.pushed.append(request)
            self._changed.notify_all()
        if answer in ("", "lost"):
            self.updates += 1
        if answer == "too large":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max")
        if answer == "lost":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return update_pb2.PushUpdateResponse(
            applied=answer == "", reason=answer, updates=self.updates
        )


@dataclass
class Worker:
    """Computes the weights themselves, or what a test says."""

    taken: list[Weights] = field(default_factory=list)
    begun: list[Chunk] = field(default_factory=list)
    bad: int = 0
    """Gradients that will not be finite."""

    def take(self, weights: Weights) -> None:
        self.taken.append(weights)

    def begin(self, chunk: Chunk) -> None:
        self.begun.append(chunk)

    def gradient(self) -> Computed:
        values = self.taken[-1].values * 1.0
        if self.bad:
            self.bad -= 1
            values[0] = np.nan
        return Computed(values, {"entropy": 0.5})


@dataclass
class World:
    """A device beside a server."""

    server: Server
    worker: Worker
    queue: GradientQueue
    uplink: GradientUplink
    events: Events
    endpoint: grpc.aio.Server

    def put(self, chunks: int = 1) -> None:
        for _ in range(chunks):
            self.queue.put(make_chunk(SPEC, seed=7))

    def told(self) -> list[str]:
        return [event.name for event in self.events.take()]


@asynccontextmanager
async def world(directory: Path, **config: Any) -> AsyncIterator[World]:  # noqa: ANN401 - settings
    pki = FleetPki.create(directory / "pki", FLEET)
    pems = Identity(pki.issue("learner", Role.LEARNER), "learner", None).read_pems()
    server, port = Server(), free_port()
    endpoint = grpc.aio.server()
    rpc.add_ParameterServerServicer_to_server(server, endpoint)
    keys = grpc.ssl_server_credentials(
        [(pems.key, pems.cert)], root_certificates=pems.ca, require_client_auth=True
    )
    endpoint.add_secure_port(f"127.0.0.1:{port}", keys)
    settings = GradientsConfig(**{"passes": 1, "codec": "float32", **config})
    queue, worker = GradientQueue(settings.queue_chunks), Worker()
    events = Events(DEVICE, RUN_ID, clock=lambda: 0.0)
    uplink = GradientUplink(
        ServerConfig("127.0.0.1", port, backoff_cap_s=0.05),
        Identity(pki.issue(DEVICE, Role.DEVICE), DEVICE, None),
        queue,
        worker,
        events,
        settings,
        fleet=FLEET,
        run_id=RUN_ID,
        spec=SPEC,
    )
    serving = asyncio.ensure_future(uplink.serve())
    try:
        yield World(server, worker, queue, uplink, events, endpoint)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await endpoint.stop(0)
