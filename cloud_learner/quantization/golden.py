"""Golden vectors: decisions that every device has to reproduce before it acts with a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from cloud_learner.models.exploring import EpsilonGreedy
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.session import feeds
from shoal.policy import ACTION, DISTRIBUTION, LOG_PROB, NEXT_STATE, Golden
from shoal.tensors import Array

GOLDEN_ROWS: Final = 32
GOLDEN_BYTES: Final = 128 * 1024  # of observations: golden images must not outweigh the weights
GOLDEN_STATE_BYTES: Final = 2 * 1024  # of next states, which differ in every version
_FEWEST_ROWS: Final = 4
_MARGIN: Final = 1e-3  # golden actions win by this much: rounding on another machine cannot flip it


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What golden vectors ask; it stays the same over many versions, so that a refresh is small.

    Attributes:
        observations: `[M, *obs]`.
        noise: float32 `[M, noise_width]`.
        states: float32 `[M, S]`; S = 0 without memory.
    """

    observations: Array
    noise: NDArray[np.float32]
    states: NDArray[np.float32]

    @classmethod
    def pick(
        cls,
        policy: Policy,
        sample: Sample,
        noise: NDArray[np.float32],
        distribution: NDArray[np.float32],
    ) -> Inputs:
        """Picks rows of a sample whose decisions are clear.

        Args:
            policy: Whose graph decides.
            sample: M rows.
            noise: float32 `[M, noise_width]`.
            distribution: `[M, P]`, what the graph gave for them.
        """
        decided = np.flatnonzero(clear_rows(policy, distribution, noise))
        clear = decided if decided.size else np.arange(len(noise))
        most = golden_rows(sample.observations[:1].nbytes, sample.states[:1].nbytes)
        chosen = clear[:: -(-len(clear) // most)]
        return cls(sample.observations[chosen], noise[chosen], sample.states[chosen])

    def cleared(
        self, policy: Policy, distribution: NDArray[np.float32], noise: NDArray[np.float32]
    ) -> Inputs | None:
        """The same with other noise where a decision is not clear any more.

        Args:
            policy: Whose graph decides.
            distribution: `[M, P]`, what the graph gives for these observations.
            noise: float32 `[N, noise_width]`, to choose from.

        Returns:
            Itself where all are clear; None where no noise makes a decision clear.
        """
        unclear = np.flatnonzero(~clear_rows(policy, distribution, self.noise))
        if not unclear.size:
            return self
        changed = self.noise.copy()
        for row in unclear:
            asked = np.repeat(distribution[row : row + 1], len(noise), axis=0)
            clear = np.flatnonzero(clear_rows(policy, asked, noise))
            if not clear.size:
                return None
            changed[row] = noise[clear[row % len(clear)]]
        return replace(self, noise=changed)


def ask(
    policy: Policy, session: ort.InferenceSession, inputs: Inputs
) -> tuple[Golden, NDArray[np.float32]]:
    """Records what a policy's graph decides, and its distribution `[M, P]`."""
    names = [ACTION, LOG_PROB, DISTRIBUTION, *([NEXT_STATE] if policy.state_width else [])]
    given = feeds(policy.observation, inputs.observations, inputs.noise, inputs.states)
    outputs = dict(zip(names, session.run(names, given), strict=True))
    golden = Golden(
        observations=inputs.observations,
        noise=inputs.noise,
        actions=outputs[ACTION],
        log_probs=outputs[LOG_PROB],
        states=inputs.states if policy.state_width else None,
        next_states=outputs.get(NEXT_STATE),
    )
    return golden, outputs[DISTRIBUTION]


def golden_rows(row_bytes: int, state_bytes: int = 0) -> int:
    """How many rows to record of observations and states of these sizes."""
    by_observation = GOLDEN_BYTES // max(1, row_bytes)
    by_state = GOLDEN_STATE_BYTES // max(1, state_bytes)
    return max(_FEWEST_ROWS, min(GOLDEN_ROWS, by_observation, by_state))


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


class GoldenInputs:
    """Keeps what golden vectors ask: taken afresh for versions 1, 2, 4, 8, ..., so seldom later.

    What they ask early says little of where a policy goes; later it hardly matters.

    >>> golden = inputs.record(policy, session, sample, noise, distribution, tensors)
    """

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._inputs: Inputs | None = None
        self._versions = 0
        self._due = 1
        self._tensors: Mapping[str, Array] = {}

    def record(
        self,
        policy: Policy,
        session: ort.InferenceSession,
        sample: Sample,
        noise: NDArray[np.float32],
        distribution: NDArray[np.float32],
        tensors: Mapping[str, Array],
    ) -> Golden:
        """The golden vectors of the next version.

        Args:
            policy: Whose graph it is.
            session: Of that graph.
            sample: M rows, for new inputs.
            noise: float32 `[M, noise_width]`.
            distribution: `[M, P]`, what the graph gave for them.
            tensors: What the version consists of; of the same ones inputs stay too.
        """
        self._versions += 1
        inputs = self._inputs
        if self._versions >= self._due and not _equal(self._tensors, tensors):
            self._due, inputs = 2 * self._versions, None
        self._tensors = tensors
        if inputs is not None:
            golden, found = ask(policy, session, inputs)
            cleared = inputs.cleared(policy, found, noise)
            if cleared is inputs:
                return golden
            inputs = cleared
        self._inputs = inputs or Inputs.pick(policy, sample, noise, distribution)
        return ask(policy, session, self._inputs)[0]

    def state(self) -> dict[str, Array]:
        """What is kept, by name."""
        if self._inputs is None:
            return {}
        return {
            "count": np.array([self._versions, self._due], np.int64),
            "observations": self._inputs.observations,
            "noise": self._inputs.noise,
            "states": self._inputs.states,
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Goes on with what another one kept."""
        if state:
            self._versions, self._due = (int(each) for each in state["count"])
            self._inputs = Inputs(state["observations"], state["noise"], state["states"])


def _equal(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    return ours.keys() == theirs.keys() and all(
        np.array_equal(array, theirs[name]) for name, array in ours.items()
    )
