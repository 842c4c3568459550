"""Policies for tests of relays: signed by a real key, small, and not for acting with."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from shoal.policy import Golden
from shoal.tensors import Array

FLEET = "reef"
GRAPH = b"a weightless graph"
TWIN_GRAPH = b"the graph of its float twin"


@dataclass(frozen=True)
class SmallPolicy:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.996


def small_policy(seed: int, weights: int) -> SmallPolicy:
    golden = Golden(
        observations=np.zeros((1, 4), np.float32),
        noise=np.zeros((1, 2), np.float32),
        actions=np.array([1]),
        log_probs=np.array([-0.5], np.float32),
    )
    weight = np.random.default_rng(0).integers(-63, 64, weights).astype(np.int8)
    weight[seed % weights] ^= 1
    return SmallPolicy({"weight.0": weight}, golden)


def publish(
    log: PolicyLog, *, graph: bytes = GRAPH, twin: bytes | None = TWIN_GRAPH, weights: int = 64
) -> Published:
    return log.publish(
        small_policy(log.highest_version, weights),
        graph=graph,
        updates=16,
        spec_fingerprint=bytes(32),
        float_graph=twin,
    )


def published_by(key: Ed25519PrivateKey, directory: Path, count: int) -> list[Published]:
    """Versions 1 to `count` of one learner."""
    with PolicyLog(directory, key, FLEET) as log:
        return [publish(log) for _ in range(count)]


def graph_of(digest: bytes) -> bytes:
    """What an honest upstream answers."""
    from shoal.policy import sha256

    return {sha256(graph): graph for graph in (GRAPH, TWIN_GRAPH)}[digest]
