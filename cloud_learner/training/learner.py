"""The learner: `step(batch)` is the only thing that changes weights."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from cloud_learner.algorithms.interface import Algorithm, Behaviour, Experience
from cloud_learner.models.policy import Policy
from cloud_learner.training.experience import Fresh
from shoal.errors import CheckpointError


class LearnerState(TypedDict):
    """Everything that training goes on from, for `torch.save`.

    Attributes:
        algorithm: Its dotted path.
        state: Its own state.
        updates: The learner's count, which may be ahead of the algorithm's own.
        non_finite: Steps after which the policy's weights were not finite.
    """

    algorithm: str
    state: Mapping[str, Any]
    updates: int
    non_finite: int


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did.

    Attributes:
        updates: Optimiser updates since training began.
        values: Scalars by name.
    """

    updates: int
    values: Mapping[str, float]


class Learner:
    """Steps an algorithm, counts its updates, and watches that its weights stay finite.

    >>> learner = Learner(choice.build(setup), name=choice.path)
    >>> learner.step(batch).values["policy_loss"]

    Attributes:
        algorithm: What learns.
    """

    def __init__(self, algorithm: Algorithm, *, name: str) -> None:
        """Takes over an algorithm.

        Args:
            algorithm: With fresh weights.
            name: Its dotted path, for checkpoints.
        """
        self.algorithm = algorithm
        self._name = name
        self._ahead = 0
        self._non_finite = 0

    @property
    def policy(self) -> Policy:
        """What is quantized and published."""
        return self.algorithm.policy

    @property
    def behaviour(self) -> Behaviour:
        """What devices are asked for."""
        behaviour: Behaviour = getattr(self.algorithm, "behaviour", Behaviour())
        return behaviour

    @property
    def updates(self) -> int:
        """Optimiser updates since training began: the unit of lag."""
        return self._ahead + self.algorithm.updates

    @property
    def skipped(self) -> int:
        """Updates left out since training began: a loss or gradient was not finite."""
        return int(getattr(self.algorithm, "skipped", 0))

    @property
    def non_finite(self) -> int:
        """Steps after which the policy's weights were not finite: none of them is published."""
        return self._non_finite

    def resume_at(self, updates: int) -> None:
        """Sets the update counter forward, so that versions never seem newer than the learner."""
        self._ahead = max(self._ahead, updates - self.algorithm.updates)

    def follow(self, updates: int) -> None:
        """Sets the count of a learner whose updates are made elsewhere; its algorithm follows."""
        self.algorithm.note_updates(updates - self._ahead)  # type: ignore[attr-defined] # optional

    def note_given_weights(self) -> None:
        """Tells the algorithm that the policy's weights were just set from elsewhere."""
        note = getattr(self.algorithm, "note_given_weights", None)
        if note is not None:
            note()

    def observe(self, fresh: Fresh) -> None:
        """Shows the algorithm a chunk that came into a store of transitions, once."""
        observe = getattr(self.algorithm, "observe", None)
        if observe is not None:
            observe(fresh)
        else:
            self.algorithm.policy.observe(fresh.observations)

    def step(self, batch: Experience) -> StepMetrics:
        """Trains on one batch."""
        began = time.perf_counter()
        skipped_before = self.skipped
        learned = self.algorithm.learn(batch)
        finite = self._weights_finite()
        self._non_finite += not finite
        elapsed = time.perf_counter() - began
        values = dict(learned) | {
            "skipped": float(self.skipped - skipped_before),
            "weights_finite": float(finite),
            "step_ms": elapsed * 1e3,
            "transitions_per_s": batch.transitions / elapsed,
            "lag_mean": float(batch.lags.mean()),
            "lag_max": float(batch.lags.max()),
        }
        return StepMetrics(updates=self.updates, values=values)

    def state_dict(self) -> LearnerState:
        """A copy of everything training goes on from."""
        return LearnerState(
            algorithm=self._name,
            state=self.algorithm.state_dict(),
            updates=self.updates,
            non_finite=self._non_finite,
        )

    def load_state_dict(self, state: LearnerState) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another algorithm or another network.
        """
        if state["algorithm"] != self._name:
            raise CheckpointError(
                f"the checkpoint is of {state['algorithm']}, training.algorithm is {self._name}: "
                "set it back, or use another state_dir"
            )
        try:
            self.algorithm.load_state_dict(state["state"])
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise CheckpointError(
                f"the checkpoint does not fit {self._name} with its present settings ({message}): "
                "resume with the training.network and training.settings it was made with"
            ) from error
        self._ahead = 0
        self.resume_at(state["updates"])
        self._non_finite = state["non_finite"]

    def _weights_finite(self) -> bool:
        sums = [weights.detach().sum() for weights in self.algorithm.policy.parameters()]
        return bool(torch.isfinite(torch.stack(sums)).all()) if sums else True
