"""Graphs and tensors in integers, as a learner publishes them: versions by the number."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from networks import Case
from policy_graphs import Weights

from cloud_learner.quantization.quantize import Quantizer
from shoal.tensors import Array


@lru_cache
def int8_weights(case: Case, seed: int) -> Weights:
    """Of one version: with every seed other weights, within the seven bits that they have."""
    quantizer = Quantizer(case.policy, kl_max=1e9)
    quantized = quantizer.quantize(case.policy, case.sample)
    assert quantized.precision == "int8"
    rng = np.random.default_rng(seed)
    tensors = {name: _moved(array, rng) for name, array in quantized.tensors.items()}
    return Weights(quantizer.graphs["int8"], tensors)


def _moved(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype != np.int8 or not array.ndim:
        return array
    return rng.integers(-63, 64, array.shape).astype(np.int8)
