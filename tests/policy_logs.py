"""Policy logs of small policies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.signing import HeldDelegation
from shoal.delegation import Delegation, sign_delegation
from shoal.policy import Golden, decode_bundle, sha256
from shoal.tensors import Array, decode_tensors

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW_S = 1_700_000.5
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
    retain_bytes: int = 0,
    keep_per_doubling: int = 0,
    after_version: int = 0,
    in_use: Callable[[], Collection[int]] = frozenset,
    pinned: Callable[[], Collection[int]] = frozenset,
    delegate: tuple[Ed25519PrivateKey, HeldDelegation] | None = None,
) -> PolicyLog:
    key, held = delegate or (KEY, None)
    return PolicyLog(
        directory,
        key,
        "reef",
        held=held,
        keep=keep,
        retain_bytes=retain_bytes,
        keep_per_doubling=keep_per_doubling,
        after_version=after_version,
        in_use=in_use,
        pinned=pinned,
        clock=lambda: NOW_S,
    )


def delegate(generation: int, *, lasts_s: int = 1000) -> tuple[Ed25519PrivateKey, HeldDelegation]:
    """A delegate of `KEY`, and its delegation from now on."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([generation]) * 32)
    public, begins_s = key.public_key().public_bytes_raw(), int(NOW_S)
    delegation = Delegation("reef", public, generation, begins_s, begins_s + lasts_s)
    held = HeldDelegation(delegation, sign_delegation(delegation, KEY), KEY.public_key())
    return key, held


def publish(log: PolicyLog, updates: int, graph: bytes = GRAPH) -> Published:
    return log.publish(policy(updates), graph=graph, updates=updates, spec_fingerprint=FINGERPRINT)


def bundle_path(directory: Path, version: int) -> Path:
    return directory / "versions" / f"{version:08d}.bundle"


def seed_of(published: Published) -> int:
    tensors = decode_tensors(decode_bundle(published.bundle).tensors)
    return int(tensors["weight"][0, 0])
