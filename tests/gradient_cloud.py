"""A real learner of the mode `gradients` and its endpoint; only the broker is left out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sim import until
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.core import Core, open_core
from cloud_learner.gradients.making import max_request_bytes
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.source import GradientSource
from cloud_learner.serving.grpc_server import GrpcServer
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.arrivals import Birth
from shoal.gradients import CODECS, Encoder, Weights, decode_weights
from shoal.identity import Identity
from shoal.layout import ObservationLayout
from shoal.moments import Moments
from shoal.v1 import device_pb2, trajectory_pb2
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2 as pb
from shoalctl.pki.pki import FleetPki, Role

SPEC = cartpole_spec()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
DEADLINE_S = 60.0
INTERVAL = 4
SMALL: dict[str, object] = {"max_lag": 5, "max_norm": 50.0, "shards": 3}


def config_in(directory: Path, *, normalize: bool = False, **gradients: object) -> LearnerConfig:
    return LearnerConfig(
        fleet="reef",
        identity=directory,
        state_dir=directory / "state",
        training=TrainingConfig(
            mode="gradients",
            network=NetworkConfig(hidden=(8,), normalize=normalize),
            publish_interval=INTERVAL,
        ),
        gradients=GradientsConfig(**(SMALL | gradients)),  # type: ignore[arg-type] # what a test says
        checkpoint_interval_s=0.0,
        tensorboard=False,
    )


@dataclass
class Cloud:
    """A learner that is trained by pushes, and devices to push."""

    core: Core
    port: int
    pki: FleetPki
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def source(self) -> GradientSource:
        source = self.core.parts.replay
        assert isinstance(source, GradientSource)
        return source

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.core.parts.counters)

    @property
    def flat(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        assert self.source.live is not None
        return self.source.live.shards.flat.copy()

    def be_born(self) -> None:
        status = device_pb2.Status(
            device_id="pi-1",
            run_id=RUN_ID,
            state=device_pb2.DEVICE_STATE_ONLINE,
            env_spec=SPEC.to_pb(),
        )
        self.core.parts.fleet.note_status(Birth(status, SPEC))

    async def device(self, name: str = "pi-1", *, role: Role = Role.DEVICE) -> Device:
        directory = self.pki.directory / "identities" / name
        if not directory.exists():
            self.pki.issue(name, role)
        pems = Identity(directory, name, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        channel = grpc.aio.secure_channel(
            f"localhost:{self.port}", keys, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        await self.stack.enter_async_context(channel)
        return Device(name, rpc.ParameterServerStub(channel))


@dataclass
class Device:
    """One that computes gradients of made-up chunks."""

    name: str
    stub: rpc.ParameterServerStub
    seq: int = 0

    async def weights(
        self, have: int = 0, *, fleet: str = "reef", acted_version: int = 0
    ) -> Weights | None:
        request = pb.GetWeightsRequest(
            fleet=fleet, device_id=self.name, have_updates=have, acted_version=acted_version
        )
        data = b""
        async for part in self.stub.GetWeights(request, timeout=DEADLINE_S):
            assert part.offset == len(data)
            data += part.data
        return decode_weights(data) if data else None

    async def update(self, *, norm: float = 1.0, **changes: object) -> pb.PushUpdateRequest:
        weights = await self.weights()
        assert weights is not None
        rng = np.random.default_rng(self.seq)
        gradient = rng.normal(size=len(weights.values)).astype(np.float32)
        gradient *= np.float32(norm / np.linalg.norm(gradient))
        moments = Moments.of(
            make_chunk(SPEC, seed=self.seq).observations,
            ObservationLayout.of(SPEC.observation),
        )
        assert moments is not None
        request = pb.PushUpdateRequest(
            fleet="reef",
            device_id=self.name,
            run_id=RUN_ID,
            seq=self.seq,
            layout_digest=weights.layout_digest,
            updates=weights.updates,
            policy_version=1,
            transitions=8,
            codec=CODECS["float32"],
            parameters=len(gradient),
            body=Encoder("float32").encode(gradient),
            episodes=[trajectory_pb2.Episode(env=0, step=1, total_return=12.0, length=12)],
            metrics={"entropy": 0.5, "not a name": 1.0, "value_loss": float("nan")},
            moments=moments.to_pb(),
        )
        for name, value in changes.items():
            setattr(request, name, value)
        self.seq += 1
        return request

    async def push(self, request: pb.PushUpdateRequest | None = None) -> pb.PushUpdateResponse:
        request = request or await self.update()
        response = await self.stub.PushUpdate(request, timeout=DEADLINE_S)
        assert isinstance(response, pb.PushUpdateResponse)
        return response


@asynccontextmanager
async def learning(
    directory: Path, config: LearnerConfig, *, born: bool = True, kill: bool = False
) -> AsyncIterator[Cloud]:
    """A learner on its state directory; at the end it is stopped, or killed: nothing is saved."""
    pki_path = directory / "pki"
    pki = FleetPki.load(pki_path) if pki_path.exists() else FleetPki.create(pki_path, "reef")
    learner = pki_path / "identities" / "learner"
    if not learner.exists():
        pki.issue("learner", Role.LEARNER)
    (directory / "state").mkdir(exist_ok=True)
    state = StateDir.open(config.state_dir, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(config, state, KEY, stack, rng=random.Random(0))
        server = await stack.enter_async_context(
            GrpcServer(
                "127.0.0.1",
                0,
                Identity(learner, "learner", None),
                [core.parts.parameter_server],
                max_request_bytes=max_request_bytes(config),
            )
        )
        cloud = Cloud(core, server.port, pki)
        async with cloud.stack, asyncio.TaskGroup() as group:
            training = group.create_task(core.trainer.serve(core.restored))
            if born:
                cloud.be_born()
                await until(lambda: core.trainer.standard() is not None)
            yield cloud
            core.trainer._midway = core.trainer._midway or kill
            training.cancel()
