"""The chunks that `shoal bench stream` and `scale` send: recorded by a device's own actor."""

from dataclasses import dataclass

from shoal.trajectory import Chunk, decode_chunk

CARTPOLE = "CartPole-v1"
PIXELS = "examples.cartpole_pixels:CartPolePixels"


@dataclass(frozen=True, slots=True)
class Experience:
    """Encoded chunks of equal T and N.

    Attributes:
        bodies: As a device encodes each by default, once the learner said that it reads that.
        transitions: T x N of each.
        raw_bytes: Of one, before compression.
        spec: The spaces, as `EnvSpec.to_pb` serializes.
    """

    bodies: tuple[bytes, ...]
    transitions: int
    raw_bytes: int
    spec: bytes

    def first(self) -> Chunk:
        """One of them, opened."""
        return decode_chunk(self.bodies[0])


def record(env: str, envs: int, chunk_steps: int, count: int) -> Experience:
    """Acts with a fresh int8 policy and encodes what happened.

    Args:
        env: A gymnasium id, or `module:attr`.
        envs: N.
        chunk_steps: T.
        count: How many chunks to record.
    """
    # With torch: whoever calls this does so in a process of its own.
    import math
    import os

    import numpy as np

    from cloud_learner.config import NetworkConfig
    from cloud_learner.models.policy import build_policy
    from cloud_learner.quantization.quantize import Quantizer
    from cloud_learner.quantization.sample import Sample
    from edge_agent.acting.actor import Actor
    from edge_agent.config import EnvConfig
    from edge_agent.environments.env import make_env
    from edge_agent.policies.policy import Policy
    from shoal.layout import ObservationLayout
    from shoal.noise import RUN_ID_BYTES
    from shoal.packing import Packing
    from shoal.policy import Manifest, sha256
    from shoal.tensors import encode_tensors
    from shoal.trajectory import encode_columns

    with make_env(EnvConfig(env, num_envs=envs, seed=0)) as environments:
        spec = environments.spec
        model = build_policy(spec, NetworkConfig(), head="sample", seed=0)
        quantizer = Quantizer(model, kl_max=math.inf)
        observations = environments.reset().copy()
        sample = Sample(observations, np.zeros((envs, 0), np.float32))
        quantized = quantizer.quantize(model, sample)
        graph, tensors = quantizer.graphs[quantized.precision], encode_tensors(quantized.tensors)
        manifest = Manifest(
            fleet="bench",
            version=1,
            updates=0,
            graph_digest=sha256(graph),
            graph_bytes=len(graph),
            tensors_digest=sha256(tensors),
            tensors_bytes=len(tensors),
            golden_digest=bytes(32),
            spec_fingerprint=spec.fingerprint,
            precision=quantized.precision,
            created_unix_ms=0,
            kl_quantization=quantized.kl_quantization,
            reason="bench",
        )
        layout = ObservationLayout.of(spec.observation)
        policy = Policy.load(graph, quantized.tensors, manifest, layout)
        actor = Actor(environments, run_id=os.urandom(RUN_ID_BYTES), chunk_steps=chunk_steps)
        chunks = [actor.rollout(policy) for _ in range(count)]
        packing = Packing()
        bodies = tuple(encode_columns(chunk, packing) for chunk in chunks)
    raw_bytes = sum(getattr(chunks[0], name).nbytes for name in _COLUMNS)
    return Experience(bodies, chunks[0].transitions, raw_bytes, spec.to_pb().SerializeToString())


_COLUMNS = (
    *("observations", "actions", "log_probs", "rewards", "terminated", "truncated"),
    *("final_index", "final_observations"),
)
