"""Bytes of a refresh while a policy really learns."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from bench.report import median
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from in_memory import InMemory
from networks import make_case

from cloud_learner.config import NetworkConfig, TrainingConfig
from cloud_learner.downlink.published import Circumstances, Published, QuantizedPolicy, sign_policy
from cloud_learner.downlink.signing import HeldDelegation
from cloud_learner.quantization.quantize import Quantized, Quantizer
from shoal.delegation import Delegation, sign_delegation
from shoal.policy import decode_bundle
from shoal.policy_delta import PolicyDelta, compress_policy_delta
from shoal.spaces import Discrete, unbounded
from shoal.streams import LeaveRaw
from shoal.tensors import Array, decode_tensors

NETWORK = NetworkConfig(hidden=(256, 256), normalize=True)
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_DELEGATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))


@dataclass(frozen=True, slots=True)
class Bytes:
    """What refreshes weighed, manifest, signature and golden vectors included.

    Attributes:
        refreshes: How many.
        env_steps: Of the whole run.
        return_mean: Of the last 100 episodes at its end.
        fp32: Of the same weights as fp32 tensors.
        whole: Of the int8 policy whole, median.
        median: Of a delta.
        mean: Of a delta.
        largest: Of a delta.
        entropy: Of the steps of the int8 weights, each tensor's as if independent; median.
        changed: Part of the int8 weights that change, mean.
        kl: Quantization gap in nats, mean.
    """

    refreshes: int
    env_steps: int
    return_mean: float
    fp32: int
    whole: int
    median: int
    mean: int
    largest: int
    entropy: int
    changed: float
    kl: float

    def as_json(self) -> dict[str, object]:
        """With ratios."""
        return {
            **asdict(self),
            "fp32_to_median": round(self.fp32 / self.median, 2),
            "fp32_to_mean": round(self.fp32 / self.mean, 2),
            "median_to_entropy": round(self.median / self.entropy, 3),
        }


def signed(
    quantized: QuantizedPolicy, version: int, graph: bytes, *, by_delegate: bool = False
) -> Published:
    """As the policy log signs it."""
    circumstances = Circumstances(
        fleet="bench",
        version=version,
        updates=version * 16,
        spec_fingerprint=bytes(range(32)),
        created_unix_ms=1_700_000_000_000 + version * 1000,
        reason="publish",
    )
    if not by_delegate:
        return sign_policy(quantized, graph, circumstances, _KEY, float_graph=graph)
    public = _DELEGATE.public_key().public_bytes_raw()
    delegation = Delegation("bench", public, 1, 1_700_000_000, 1_715_552_000)
    held = HeldDelegation(delegation, sign_delegation(delegation, _KEY), _KEY.public_key())
    return sign_policy(quantized, graph, circumstances, _DELEGATE, float_graph=graph, held=held)


def delta_bytes(base: Published, target: Published) -> int:
    """What is pushed to a device that has the base."""
    delta = PolicyDelta.between(
        decode_bundle(base.bundle), decode_bundle(target.bundle), packer=LeaveRaw()
    )
    return len(compress_policy_delta(delta))


class _Recorded(InMemory):
    """Keeps what each version would have cost to push."""

    def note_published(self, quantized: Quantized) -> None:
        """Weighs a version beside the one before."""
        if not hasattr(self, "sizes"):  # the first one comes while the fleet is made
            self.sizes: list[tuple[int, int, float, float]] = []
            self.kls: list[float] = []
            self.last: Published | None = None
        graph = self.quantizer.graphs[quantized.precision]
        published = signed(quantized, len(self.sizes) + 2, graph)
        if self.last is not None:
            before, after = (
                decode_tensors(decode_bundle(each.bundle).tensors)
                for each in (self.last, published)
            )
            self.sizes.append(
                (delta_bytes(self.last, published), len(published.bundle), *steps_of(before, after))
            )
            self.kls.append(quantized.kl_quantization)
        self.last = published


def steps_of(before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[float, float]:
    """Entropy of the steps of int8 weights in bytes, and which part of them is not 0."""
    bits, changed, count = 0.0, 0, 0
    for name, array in after.items():
        base = before.get(name)
        if array.dtype != np.int8 or array.ndim == 1 or base is None or base.shape != array.shape:
            continue
        steps = array.astype(np.int64) - base.astype(np.int64)
        frequencies = np.unique(steps, return_counts=True)[1] / steps.size
        bits -= float((frequencies * np.log2(frequencies)).sum()) * steps.size
        changed += int(np.count_nonzero(steps))
        count += steps.size
    return bits / 8, changed / max(1, count)


def count_bytes(seconds: float, dead_zone: float, learning_rate: float, seed: int) -> Bytes:
    """Learns for so long, and weighs every refresh."""
    training = TrainingConfig(
        network=NETWORK,
        batch_steps=4096,
        dead_zone=dead_zone,
        settings={
            "gamma": 0.999,
            "trace_lambda": 0.98,
            "entropy_coef": 0.01,
            "learning_rate": learning_rate,
            "final_learning_rate": learning_rate / 5,
            "anneal_updates": 8000,
            "epochs": 4,
            "minibatches": 8,
        },
    )
    fleet = _Recorded("LunarLander-v3", training, devices=4, envs=8, chunk_steps=64, seed=seed)
    until_s = time.monotonic() + seconds
    for _ in fleet.run():
        if time.monotonic() > until_s and len(fleet.sizes) > 1:
            break
    deltas, wholes, entropies, changed = zip(*fleet.sizes, strict=True)
    assert fleet.last is not None
    return Bytes(
        refreshes=len(deltas),
        env_steps=fleet.env_steps,
        return_mean=round(fleet.return_mean, 1),
        fp32=fleet.last.fp32_bytes,
        whole=int(median(wholes)),
        median=int(median(deltas)),
        mean=int(np.mean(deltas)),
        largest=max(deltas),
        entropy=int(median(entropies)),
        changed=float(np.mean(changed)),
        kl=float(np.mean(fleet.kls)),
    )


def unchanged_bytes(*, by_delegate: bool = False) -> int:
    """What a refresh of the very same weights weighs."""
    case = make_case(unbounded((8,)), Discrete(4), NETWORK)
    quantizer = Quantizer(case.policy, kl_max=1.0, dead_zone=0.25)
    first, second = (
        signed(
            quantizer.quantize(case.policy, case.sample),
            version,
            quantizer.graphs["int8"],
            by_delegate=by_delegate,
        )
        for version in (1, 2)
    )
    return delta_bytes(first, second)
