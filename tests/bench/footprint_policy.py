"""What `shoal bench footprint` acts with: one fresh network, published, and as plain weights."""

from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from bench.fleet_site import FLEET, HOST

WEIGHTS_FILE = "weights.npz"


def publish(identity: Path, directory: Path, hidden: Sequence[int]) -> None:
    """Publishes a network for CartPole in a policy log, and leaves its weights beside it.

    Args:
        identity: The learner's.
        directory: Gets `policies` and `WEIGHTS_FILE`.
        hidden: Widths.
    """
    # With torch: whoever calls this does so in a process of its own.
    import math

    import numpy as np
    from torch import nn

    from cloud_learner.config import NetworkConfig
    from cloud_learner.downlink.policy_log import PolicyLog
    from cloud_learner.downlink.signing import load_signing_key
    from cloud_learner.models.policy import build_policy
    from cloud_learner.quantization.quantize import Quantizer
    from cloud_learner.quantization.sample import Sample
    from edge_agent.config import EnvConfig
    from edge_agent.environments.env import make_env
    from shoal.identity import Identity

    with make_env(EnvConfig("CartPole-v1", num_envs=64, seed=0)) as environments:
        spec = environments.spec
        observations = environments.reset().copy()
    model = build_policy(spec, NetworkConfig(hidden=tuple(hidden)), head="sample", seed=0)
    quantizer = Quantizer(model, kl_max=math.inf)
    quantized = quantizer.quantize(
        model, Sample(observations, np.zeros((len(observations), 0), np.float32))
    )
    key = load_signing_key(Identity.load(identity))
    with PolicyLog(directory / "policies", key, FLEET) as log:
        log.publish(
            quantized,
            graph=quantizer.graphs[quantized.precision],
            updates=0,
            spec_fingerprint=spec.fingerprint,
        )
    dense = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    arrays: dict[str, Any] = {}
    for number, layer in enumerate(dense):
        arrays[f"w{number}"] = layer.weight.detach().numpy()
        arrays[f"b{number}"] = layer.bias.detach().numpy()
    np.savez(directory / WEIGHTS_FILE, **arrays)


def publish_apart(identity: Path, directory: Path, hidden: Sequence[int], pipe: Pipe) -> None:
    """The same, and says so over a pipe."""
    publish(identity, directory, hidden)
    pipe.send("published")


def serve_policies(identity: Path, directory: Path, pipe: Pipe) -> None:
    """Serves what `publish` left until the pipe closes; says its port."""
    import asyncio

    from cloud_learner.downlink.parameter_server import ParameterServer
    from cloud_learner.downlink.policy_log import PolicyLog
    from cloud_learner.downlink.signing import load_signing_key
    from cloud_learner.serving.grpc_server import GrpcServer
    from shoal.identity import Identity

    own = Identity.load(identity)

    async def serve() -> None:
        with PolicyLog(directory / "policies", load_signing_key(own), FLEET) as log:
            async with GrpcServer(HOST, 0, own, [ParameterServer(log, fleet=FLEET)]) as server:
                pipe.send(server.port)
                await asyncio.to_thread(pipe.recv)

    asyncio.run(serve())
