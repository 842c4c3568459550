"""Processor time that publishing takes."""

import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from bench.push_bytes import signed
from bench.report import median
from networks import Case, make_case, pixels

from cloud_learner.config import NetworkConfig
from cloud_learner.downlink.published import Published
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample
from shoal.policy import decode_bundle
from shoal.policy_delta import PolicyDelta, compress_policy_delta
from shoal.spaces import Discrete, unbounded
from shoal.streams import LeaveRaw


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians in milliseconds, and of the whole the processor's own time too.

    Attributes:
        quantize_ms: Integers, the gap and golden vectors.
        sign_ms: Serializing, hashing, signing.
        encode_ms: The delta.
    """

    network: str
    quantize_ms: float
    sign_ms: float
    encode_ms: float
    total_ms: float
    total_cpu_ms: float

    def as_json(self) -> dict[str, object]:
        """As it is."""
        return asdict(self)


def case_of(network: str) -> tuple[Case, Sample]:
    """A policy and what it observed."""
    rng = np.random.default_rng(0)
    if network.startswith("mlp"):
        config = NetworkConfig(hidden=(256, 256), normalize=True)
        case = make_case(unbounded((8,)), Discrete(4), config)
        return case, Sample(
            rng.normal(size=(4096, 8)).astype(np.float32), np.zeros((4096, 0), np.float32)
        )
    config = NetworkConfig(kind="cnn", hidden=(512,))
    case = make_case(pixels(84, 84, 4), Discrete(6), config)
    images = rng.integers(0, 256, (256, 84, 84, 4), dtype=np.uint8)
    return case, Sample(images, np.zeros((256, 0), np.float32))


def nudge(case: Case) -> None:
    """A few updates: about a tenth of the integers change."""
    with torch.no_grad():
        for parameter in case.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.abs().max() * 2e-3)


def cost_of(network: str, repeats: int, dead_zone: float) -> Cost:
    """Publishes so many versions of a network that changes a little each time."""
    case, sample = case_of(network)
    quantizer = Quantizer(case.policy, kl_max=1e9, dead_zone=dead_zone)
    times: list[tuple[float, float, float, float]] = []
    last: Published | None = None
    for version in range(1, repeats + 3):
        nudge(case)
        began = (time.perf_counter(), time.process_time())
        quantized = quantizer.quantize(case.policy, sample)
        then_s = time.perf_counter()
        published = signed(quantized, version, quantizer.graphs[quantized.precision])
        signed_s = time.perf_counter()
        if last is not None:
            delta = PolicyDelta.between(
                decode_bundle(last.bundle), decode_bundle(published.bundle), packer=LeaveRaw()
            )
            compress_policy_delta(delta)
        ended = (time.perf_counter(), time.process_time())
        last = published
        if version > 2:  # the first ones warm up
            times.append(
                (then_s - began[0], signed_s - then_s, ended[0] - signed_s, ended[1] - began[1])
            )
    quantize, sign, encode, cpu = (
        round(1e3 * median(column), 2) for column in zip(*times, strict=True)
    )
    total = round(1e3 * median([sum(row[:3]) for row in times]), 2)
    return Cost(network, quantize, sign, encode, total, cpu)
