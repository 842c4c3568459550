"""The serving side of `shoal bench gradients`: the learner's endpoint in a process of its own."""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import gymnasium
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from in_memory import spec_of

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.gradients.live import Live
from cloud_learner.gradients.making import live_of
from cloud_learner.gradients.service import GradientService
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.source import GradientSource
from cloud_learner.gradients.tally import Tally
from cloud_learner.quantization.sample import probe_sample
from cloud_learner.serving.grpc_server import Context, GrpcServer
from cloud_learner.training.brain import Brain
from cloud_learner.training.start import build_brain
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uninterrupted import in_thread_to_the_end
from shoal.identity import Identity
from shoal.v1 import device_pb2
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2 as pb

FLEET = "bench"
NEVER = 1 << 40


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is served.

    Attributes:
        directory: Where identities are, and where the policy log goes.
        hidden: Widths of the network.
        shards: Of its parameters.
        threads: `gradients.threads`.
        bare: Whether the call answers at once, without looking at what it was sent.
        policies_per_s: Quantized, signed, logged and offered meanwhile, as a learner does.
    """

    directory: str
    hidden: tuple[int, ...]
    shards: int
    threads: str
    bare: bool
    policies_per_s: float


class Nobody:
    """A fleet that is told nothing."""

    def note_chunk(self, device_id: str) -> None:
        """Forgets."""

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: device_pb2.Severity = device_pb2.SEVERITY_WARNING,
        **fields: str,
    ) -> None:
        """Forgets."""


class Bare(rpc.ParameterServerServicer):
    """Answers; nothing else."""

    def __init__(self, service: GradientService) -> None:
        self._service = service

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_ParameterServerServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """There are none."""

    async def GetWeights(  # noqa: N802 - the name in the proto
        self, request: pb.GetWeightsRequest, context: Context
    ) -> object:
        """As ever: it is not measured."""
        async for part in self._service.weights(request, context):
            yield part

    async def PushUpdate(  # noqa: N802 - the name in the proto
        self, request: pb.PushUpdateRequest, context: Context
    ) -> pb.PushUpdateResponse:
        """Answers."""
        del context
        return pb.PushUpdateResponse(applied=True, updates=request.updates)


async def serve(endpoint: Endpoint) -> None:
    """Says its port on one line, and serves until its input ends."""
    torch.set_num_threads(1)
    directory = Path(endpoint.directory)
    gradients = GradientsConfig(
        shards=endpoint.shards,
        threads=endpoint.threads,  # type: ignore[arg-type] # one of them
        learning_rate=1e-9,
        max_lag=NEVER,
        max_update_bytes=1 << 24,
    )
    config = LearnerConfig(
        fleet=FLEET,
        identity=directory,
        state_dir=directory,
        training=TrainingConfig(mode="gradients", network=NetworkConfig(hidden=endpoint.hidden)),
        gradients=gradients,
    )
    choice = load_algorithm(config.training.algorithm, config.training.settings)
    spec = replace(spec_of(gymnasium.make("CartPole-v1")), env_id="CartPole-v1")
    brain = build_brain(spec, config, choice)
    stats, source = TrainingStats(), GradientSource(Tally(Counter()), interval=16)
    live = live_of(brain, config)
    source.attach(brain, live, stats)
    service = GradientService(source, stats, Nobody(), gradients, fleet=FLEET)
    identity = Identity.load(directory / "pki" / "identities" / "learner")
    with PolicyLog(directory / "policies", Ed25519PrivateKey.generate(), FLEET) as log:
        server = ParameterServer(log, fleet=FLEET, gradients=service)
        services = [Bare(service)] if endpoint.bare else [server]
        async with GrpcServer(
            "127.0.0.1", 0, identity, services, max_request_bytes=gradients.max_update_bytes
        ) as running:
            say = {"port": running.port, "parameters": live.parameters}
            sys.stdout.write(json.dumps(say) + "\n")
            sys.stdout.flush()
            publishing = asyncio.ensure_future(
                _publish(endpoint.policies_per_s, brain, live, log, server)
            )
            await asyncio.to_thread(sys.stdin.read)
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
    live.shards.close()


async def _publish(
    rate: float, brain: Brain, live: Live, log: PolicyLog, server: ParameterServer
) -> None:
    """What a learner's trainer does beside pushes, at a rate of its own."""
    sample = probe_sample(brain.learner.policy, seed=0)

    def make() -> Published:
        live.put_into(brain)
        quantized = brain.quantizer.quantize(brain.learner.policy, sample)
        return log.publish(
            quantized,
            graph=brain.quantizer.graphs[quantized.precision],
            updates=brain.learner.updates,
            spec_fingerprint=brain.spec.fingerprint,
        )

    while rate:
        server.announce(await in_thread_to_the_end(make))
        await asyncio.sleep(1.0 / rate)
