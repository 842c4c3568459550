"""Observations to calibrate quantization with, before and after the first chunk came."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.spaces import EnvSpec, observation_box
from shoal.tensors import Array

PROBE_ROWS: Final = 256
_WIDE: Final = 1e6  # bounds beyond this say nothing about what is observed


def probe_observations(spec: EnvSpec, *, seed: int) -> Array:
    """Stands for observations that nobody has made yet: `[PROBE_ROWS, *obs]`.

    Uniform between the bounds of the space; where it has none, normal with unit variance.
    """
    box = observation_box(spec)
    rng = np.random.default_rng(seed)
    shape = (PROBE_ROWS, *box.shape)
    if box.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(box.dtype)
    if box.dtype.kind in "iu":
        return rng.integers(box.low, box.high, shape, dtype=box.dtype, endpoint=True)
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    bounded = (np.abs(low) < _WIDE) & (np.abs(high) < _WIDE)
    low, high = np.where(bounded, low, 0.0), np.where(bounded, high, 1.0)
    uniform = rng.uniform(low, high, shape)
    return np.where(bounded, uniform, rng.standard_normal(shape)).astype(box.dtype)


def rows_of(observations: Array) -> Array:
    """Lays `[T, B, *obs]` out as rows `[T * B, *obs]`."""
    return observations.reshape(-1, *observations.shape[2:])
