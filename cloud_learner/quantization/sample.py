"""Observations to calibrate quantization with, before and after the first chunk came."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from cloud_learner.models.policy import Policy
from cloud_learner.training.experience import Batch
from shoal.layout import Field, ObservationLayout
from shoal.observation_statistics import ObservationStatistics, number_fields
from shoal.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from shoal.tensors import Array

PROBE_ROWS: Final = 256
_PROBE_STEPS: Final = 16  # of a policy with memory, so that its states are not all zeros
_WIDE: Final = 1e6  # bounds beyond this say nothing about what is observed


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a policy was asked.

    Attributes:
        observations: `[M, *obs]`, as chunks hold them.
        states: float32 `[M, S]`, what its memory was; S = 0 without memory.
    """

    observations: Array
    states: NDArray[np.float32]

    def thin(self, rows: int) -> Sample:
        """At most `rows` of them, evenly spread, in native byte order."""
        stride = max(1, -(-len(self.observations) // rows))
        return Sample(_native(self.observations[::stride]), _native(self.states[::stride]))


def sample_of(policy: Policy, batch: Batch) -> Sample:
    """The steps of a batch, and the states that this policy would have had at them."""
    observations = batch.observations[:-1]
    rows = observations.reshape(-1, *observations.shape[2:])
    if not policy.state_width:
        return Sample(rows, np.zeros((len(rows), 0), np.float32))
    states = _unroll(policy, observations, batch.initial_state, batch.starts)
    return Sample(rows, states)


def probe_sample(policy: Policy, *, seed: int) -> Sample:
    """Stands for observations that nobody has made yet: `PROBE_ROWS` of them.

    Uniform between the bounds of each leaf; where it has none, normal with unit variance.
    """
    layout = policy.observation
    rows = probe_rows(layout, np.random.default_rng(seed))
    if not policy.state_width:
        return Sample(rows, np.zeros((len(rows), 0), np.float32))
    lanes = PROBE_ROWS // _PROBE_STEPS
    steps = rows.reshape(_PROBE_STEPS, lanes, *layout.shape)
    initial = np.zeros((lanes, policy.state_width), np.float32)
    starts = np.zeros((_PROBE_STEPS, lanes), np.bool_)
    return Sample(rows, _unroll(policy, steps, initial, starts))


def probe_rows(
    layout: ObservationLayout,
    rng: np.random.Generator,
    seen: ObservationStatistics | None = None,
) -> Array:
    """Observations `[PROBE_ROWS, *obs]`, uniform between the bounds of each leaf, or normal.

    Args:
        layout: How they lie.
        rng: Draws them.
        seen: Of real ones: numbers are normal with their means and deviations, within the bounds.
    """
    leaves = {field.path: _probe(field, rng) for field in layout.fields}
    if seen is not None:
        deviation = np.sqrt(seen.squares / seen.count)
        drawn = rng.normal(seen.mean, deviation, (PROBE_ROWS, len(seen.mean)))
        start = 0
        for field in number_fields(layout):
            end = start + math.prod(field.shape)
            numbers = drawn[:, start:end].reshape(PROBE_ROWS, *field.shape)
            leaves[field.path] = _within(field, numbers)
            start = end
    return layout.pack(leaves)


def _within(field: Field, numbers: NDArray[np.float64]) -> Array:
    """Numbers `[R, *field.shape]` as that leaf of an observation can hold them."""
    box = field.space
    assert isinstance(box, Box)  # noqa: S101 - others have no numbers
    if box.dtype.kind in "iu":
        numbers = np.rint(numbers)
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    return np.clip(numbers, low, high).astype(box.dtype)


def _unroll(
    policy: Policy,
    observations: Array,
    initial: NDArray[np.float32],
    starts: NDArray[np.bool_],
) -> NDArray[np.float32]:
    with torch.no_grad():
        unrolled = policy.unroll(
            torch.from_numpy(_native(observations)),
            torch.from_numpy(_native(initial)),
            torch.from_numpy(_native(starts)),
        )
    states: NDArray[np.float32] = unrolled.states.flatten(0, 1).numpy()
    return states


def _probe(field: Field, rng: np.random.Generator) -> Array:
    shape = (PROBE_ROWS, *field.shape)
    match field.space:
        case Discrete():
            return rng.integers(0, field.space.n, shape)
        case MultiDiscrete():
            return rng.integers(0, field.space.nvec, shape)
        case MultiBinary():
            return rng.integers(0, 2, shape, np.int8)
        case Box():
            return _probe_box(field.space, shape, rng)


def _probe_box(box: Box, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if box.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(box.dtype)
    if box.dtype.kind in "iu":
        return rng.integers(box.low, box.high, shape, dtype=box.dtype, endpoint=True)
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    bounded = (np.abs(low) < _WIDE) & (np.abs(high) < _WIDE)
    low, high = np.where(bounded, low, 0.0), np.where(bounded, high, 1.0)
    uniform = rng.uniform(low, high, shape)
    return np.where(bounded, uniform, rng.standard_normal(shape)).astype(box.dtype)


def _native(array: Array) -> Array:
    native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return np.ascontiguousarray(native)
