"""A learner's dispatcher behind real gRPC with mutual TLS, and devices that ask it for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from cloud_learner.dispatch.config import TaskConfig, specs_of
from cloud_learner.dispatch.service import DispatchService
from cloud_learner.dispatch.store import TaskStore
from cloud_learner.dispatch.tasks import Limits, TaskQueue
from cloud_learner.serving.grpc_server import GrpcServer
from edge_agent.config import ServerConfig
from edge_agent.dispatch.dispatch import Dispatch, Left, Task
from edge_agent.events import Events
from shoal.identity import Identity
from shoal.v1 import device_pb2
from shoal.v1.dispatcher_pb2_grpc import DispatcherStub
from shoalctl.pki.pki import FleetPki, Role

FLEET = "reef"
RUN = bytes(range(16))
DEADLINE_S = 60.0
TASKS = [
    TaskConfig("pole", first_seed=0, seeds=2, episodes=5),
    TaskConfig("late", steps=9, stage=1),
]


@dataclass
class Devices:
    gone: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)

    def is_gone(self, device_id: str, run_id: bytes) -> bool:
        return device_id in self.gone

    def steps_per_s(self, device_id: str) -> float:
        return 123.0

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: device_pb2.Severity,
        **fields: str,
    ) -> None:
        self.events.append(f"{device_id} {name}: {message}")


@dataclass
class Cloud:
    pki: FleetPki
    devices: Devices
    service: DispatchService
    port: int

    def identity(self, name: str) -> Identity:
        role = Role.DEVICE if name.startswith("pi-") else Role(name)
        directory = self.pki.directory / "identities" / name
        return Identity(directory if directory.exists() else self.pki.issue(name, role), name, None)

    @asynccontextmanager
    async def stub(self, name: str) -> AsyncIterator[DispatcherStub]:
        pems = self.identity(name).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        async with grpc.aio.secure_channel(f"localhost:{self.port}", keys) as channel:
            yield DispatcherStub(channel)

    @asynccontextmanager
    async def device(self, name: str, *, run_id: bytes = RUN) -> AsyncIterator[Dispatch]:
        config = ServerConfig("localhost", self.port, backoff_cap_s=0.05)
        events = Events(name, run_id, clock=lambda: 0.0)
        desk = Dispatch(config, self.identity(name), events, fleet=FLEET, run_id=run_id)
        serving = asyncio.ensure_future(desk.serve())
        try:
            yield desk
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def cloud(
    tmp_path: Path, tasks: list[TaskConfig] | None = None, *, failures: int = 2
) -> AsyncIterator[Cloud]:
    place = tmp_path / "pki"
    pki = FleetPki.load(place) if place.exists() else FleetPki.create(place, FLEET)
    server_keys = place / "identities" / "learner"
    if not server_keys.exists():
        server_keys = pki.issue("learner", Role.LEARNER)
    devices = Devices()
    with TaskStore(tmp_path / "tasks.db") as store:
        specs = specs_of(TASKS if tasks is None else tasks)
        queue = TaskQueue(store.load(specs, 0.0), Limits(failures=failures))
        service = DispatchService(queue, store, devices, fleet=FLEET)
        learner = Identity(server_keys, "learner", None)
        async with GrpcServer("127.0.0.1", 0, learner, [service]) as server:
            yield Cloud(pki, devices, service, server.port)


async def taken(desk: Dispatch, left: Left | None = None) -> Task:
    """Asks as a control thread does, and waits for the answer."""
    desk.ask(left)
    async with asyncio.timeout(DEADLINE_S):
        while (task := await asyncio.to_thread(desk.take, 0.2)) is None:
            pass
    return task
