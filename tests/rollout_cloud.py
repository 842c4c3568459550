"""A learner's rollouts behind real gRPC with mutual TLS, on a real log and a real store.

async with rollout_cloud(tmp_path) as cloud:
    await cloud.rollouts.start(PLAN)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from bundles import PUBLIC as BUNDLE_KEY
from policy_logs import open_log, publish
from strategies import RUN_ID

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.rollout.policy_rollout import PolicyRollouts
from cloud_learner.rollout.rollouts import Rollouts
from cloud_learner.rollout.service import RolloutService
from cloud_learner.rollout.store import RolloutStore
from cloud_learner.serving.grpc_server import GrpcServer, Service
from shoal.identity import Identity
from shoal.v1 import device_pb2
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub
from shoalctl.pki.pki import FleetPki, Role

FLEET = "reef"
DEADLINE_S = 60.0
PLAN_PB = pb.RolloutPlan(
    kind=pb.ROLLOUT_KIND_POLICY,
    version="1",
    waves=[pb.RolloutWave(devices=1), pb.RolloutWave(share=1.0)],
    episodes=3,
    wave_timeout_s=60.0,
    max_failures=0.05,
    min_failures=1,
    reason="it walks further",
)


@dataclass
class Devices:
    """What the fleet knows: who was born, who is there, and what was told of them."""

    born: dict[str, device_pb2.Status] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    conditions: dict[str, str] = field(default_factory=dict)

    def add(self, *names: str, machine: str = "x86_64") -> None:
        for name in names:
            self.born[name] = device_pb2.Status(
                device_id=name,
                run_id=RUN_ID,
                state=device_pb2.DEVICE_STATE_ONLINE,
                python_version="3.11.7",
                hardware=device_pb2.Hardware(machine=machine),
            )

    def present(self) -> dict[str, float]:
        return dict.fromkeys(self.born.keys() - self.absent, 1.0)

    def statuses(self) -> dict[str, device_pb2.Status]:
        return dict(self.born)

    def status_of(self, device_id: str) -> device_pb2.Status | None:
        return self.born.get(device_id)

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

    def raise_condition(self, name: str, message: str) -> None:
        self.conditions[name] = message

    def clear_condition(self, name: str) -> None:
        self.conditions.pop(name, None)


@dataclass
class Cloud:
    """The learner's side, and how to reach it."""

    pki: FleetPki
    devices: Devices
    store: RolloutStore
    log: PolicyLog
    server: ParameterServer
    bundles: BundleStore
    rollouts: Rollouts
    counters: Counter[str]
    noted: list[int]
    port: int
    now: list[float]

    def publish(self, updates: int) -> Published:
        published = publish(self.log, updates)
        self.server.announce(published)
        return published

    def offered(self, device_id: str) -> int:
        """The version that a device is offered now."""
        offer = self.server._offer_to(device_id)
        return 0 if offer is None else offer.version

    async def pass_time(self, seconds: float) -> None:
        self.now[0] += seconds
        await self.rollouts.look()

    def identity(self, name: str) -> Identity:
        role = Role(name) if name in list(Role) else Role.DEVICE
        directory = self.pki.directory / "identities" / name
        return Identity(directory if directory.exists() else self.pki.issue(name, role), name, None)

    @asynccontextmanager
    async def stub(self, name: str) -> AsyncIterator[RolloutsStub]:
        pems = self.identity(name).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        async with grpc.aio.secure_channel(f"localhost:{self.port}", keys) as channel:
            yield RolloutsStub(channel)


@asynccontextmanager
async def rollout_cloud(
    tmp_path: Path,
    *,
    policies: int = 2,
    devices: Devices | None = None,
    keep: int = 64,
    beside: Sequence[Service] = (),
) -> AsyncIterator[Cloud]:
    """Opens it, or opens it again: what lies on disk goes on; nothing is closed in order."""
    place = tmp_path / "pki"
    pki = FleetPki.load(place) if place.exists() else FleetPki.create(place, FLEET)
    server_keys = place / "identities" / "learner"
    if not server_keys.exists():
        server_keys = pki.issue("learner", Role.LEARNER)
    if devices is None:
        devices = Devices()
        devices.add("pi-1", "pi-2", "pi-3")
    with ExitStack() as stack:
        store = stack.enter_context(RolloutStore(tmp_path / "rollouts.db"))
        store.load()
        log = stack.enter_context(open_log(tmp_path / "policies", keep=keep, pinned=store.pinned))
        for updates in range(log.highest_version, policies):
            publish(log, updates)
        server = ParameterServer(log, fleet=FLEET)
        bundles = BundleStore(tmp_path / "bundles", fleet=FLEET, public_key=BUNDLE_KEY)
        noted: list[int] = []
        carrier = PolicyRollouts(log, server, note=lambda each: noted.append(each.version))
        now = [0.0]
        rollouts = Rollouts(store, devices, carrier, bundles, clock=lambda: now[0])
        counters: Counter[str] = Counter()
        service = RolloutService(rollouts, bundles, log, fleet=FLEET, counters=counters)
        learner = Identity(server_keys, "learner", None)
        async with GrpcServer("127.0.0.1", 0, learner, [server, service, *beside]) as grpc_server:
            yield Cloud(
                pki,
                devices,
                store,
                log,
                server,
                bundles,
                rollouts,
                counters,
                noted,
                grpc_server.port,
                now,
            )


async def report(
    cloud: Cloud,
    name: str,
    progress: pb.RolloutProgress,
    *,
    digest: bytes | None = None,
    episodes: int = 3,
    claims: str = "",
    rollout_id: int = 0,
    reason: str = "",
) -> grpc.StatusCode:
    """A device says what became of it; how it was answered."""
    rollout = cloud.rollouts.find(rollout_id)
    assert rollout is not None
    if digest is None:
        manifest = next(
            info.manifest
            for info in cloud.log.list()
            if info.manifest.version == rollout.versions.candidate
        )
        digest = manifest.digest
    async with cloud.stub(name) as stub:
        request = pb.ReportOutcomeRequest(
            fleet=FLEET,
            device_id=claims or name,
            run_id=RUN_ID,
            rollout_id=rollout_id or rollout.rollout_id,
            progress=progress,
            digest=digest,
            episodes=episodes,
            reason=reason,
        )
        try:
            await stub.ReportOutcome(request, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK
