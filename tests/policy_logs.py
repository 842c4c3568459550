"""Policy logs of small policies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from shoal.policy import Golden, decode_bundle, sha256
from shoal.tensors import Array, decode_tensors

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
GRAPH = b"a weightless graph"
FINGERPRINT = sha256(b"spaces")


@dataclass(frozen=True)
class SmallPolicy:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.996


def policy(seed: int = 0) -> SmallPolicy:
    golden = Golden(
        observations=np.zeros((1, 4), np.float32),
        noise=np.zeros((1, 2), np.float32),
        actions=np.array([1]),
        log_probs=np.array([-0.5], np.float32),
    )
    return SmallPolicy({"weight": np.full((2, 3), seed, np.int32)}, golden)


def open_log(
    directory: Path,
    *,
    keep: int = 64,
    keep_per_doubling: int = 0,
    after_version: int = 0,
    in_use: Callable[[], Collection[int]] = frozenset,
    pinned: Callable[[], Collection[int]] = frozenset,
) -> PolicyLog:
    return PolicyLog(
        directory,
        KEY,
        "reef",
        keep=keep,
        keep_per_doubling=keep_per_doubling,
        after_version=after_version,
        in_use=in_use,
        pinned=pinned,
        clock=lambda: 1_700_000.5,
    )


def publish(log: PolicyLog, updates: int, graph: bytes = GRAPH) -> Published:
    return log.publish(policy(updates), graph=graph, updates=updates, spec_fingerprint=FINGERPRINT)


def bundle_path(directory: Path, version: int) -> Path:
    return directory / "versions" / f"{version:08d}.bundle"


def seed_of(published: Published) -> int:
    tensors = decode_tensors(decode_bundle(published.bundle).tensors)
    return int(tensors["weight"][0, 0])
