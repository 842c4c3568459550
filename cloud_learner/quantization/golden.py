"""Golden vectors: decisions that every device has to reproduce before it acts with a policy."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from cloud_learner.models.exploring import EpsilonGreedy
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import feeds
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, Golden

GOLDEN_ROWS: Final = 32
GOLDEN_BYTES: Final = 128 * 1024  # of observations: golden images must not outweigh the weights
_FEWEST_ROWS: Final = 4
_MARGIN: Final = 1e-3  # golden actions win by this much: rounding on another machine cannot flip it


def make_golden(
    policy: Policy,
    session: ort.InferenceSession,
    sample: Sample,
    noise: NDArray[np.float32],
    distribution: NDArray[np.float32],
) -> Golden:
    """Picks rows whose decisions are clear, and records them.

    Args:
        policy: Whose graph it is.
        session: Of that graph.
        sample: M rows.
        noise: float32 `[M, noise_width]`.
        distribution: `[M, P]`, what the graph gave for them.
    """
    decided = np.flatnonzero(clear_rows(policy, distribution, noise))
    clear = decided if decided.size else np.arange(len(noise))
    chosen = clear[:: -(-len(clear) // golden_rows(sample.observations[:1].nbytes))]
    rows = Sample(sample.observations[chosen], sample.states[chosen])
    names = [ACTION, LOG_PROB, *([NEXT_STATE] if policy.state_width else [])]
    given = feeds(policy.observation, rows.observations, noise[chosen], rows.states)
    outputs = dict(zip(names, session.run(names, given), strict=True))
    return Golden(
        observations=rows.observations,
        noise=noise[chosen],
        actions=outputs[ACTION],
        log_probs=outputs[LOG_PROB],
        states=rows.states if policy.state_width else None,
        next_states=outputs.get(NEXT_STATE),
    )


def golden_rows(row_bytes: int) -> int:
    """How many rows to record of observations of that size."""
    return max(_FEWEST_ROWS, min(GOLDEN_ROWS, GOLDEN_BYTES // max(1, row_bytes)))


def clear_rows(
    policy: Policy, distribution: NDArray[np.float32], noise: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Rows `[M]` in which every whole number of the action wins by a margin."""
    clear = np.ones(len(noise), np.bool_)
    if isinstance(policy.distribution, EpsilonGreedy):
        clear &= _lead(distribution) > _MARGIN
        clear &= _lead(noise) > _MARGIN
        clear &= np.abs(noise.max(axis=1) - policy.distribution.threshold) > _MARGIN
        return clear
    start = 0
    for choice in policy.action.choices:
        column = choice.noise_start
        for values in choice.values:
            own = slice(start, start + values)
            perturbed = distribution[:, own] + noise[:, column : column + values]
            clear &= _lead(perturbed) > _MARGIN
            start, column = start + values, column + values
        if not choice.values:
            start += 2 * choice.size
    return clear


def _lead(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """By how much the largest of each row is ahead, `[M]`."""
    if values.shape[1] == 1:
        return np.full(len(values), np.inf, np.float32)
    best = np.partition(values, -2, axis=1)[:, -2:]
    lead: NDArray[np.float32] = best[:, 1] - best[:, 0]
    return lead
