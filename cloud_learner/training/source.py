"""Where the learner's data comes from: what the trainer asks of every kind of replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, Batch, Fresh, Likeness, Transitions

if TYPE_CHECKING:  # replay itself needs no torch
    from cloud_learner.training.learner import Learner, StepMetrics

UNBOUNDED = 1 << 62
"""A lag that is never reached."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where training is when a draw is made.

    Attributes:
        updates: the learner's optimiser updates.
        max_lag: updates that a chunk may be behind.
    """

    updates: int
    max_lag: int = UNBOUNDED


@dataclass(frozen=True, slots=True)
class Draw:
    """What one draw took out of replay.

    Attributes:
        taken: chunks to train from.
        expired: chunks that came too late.
        work: whether there is something for `Source.step` to do.
    """

    taken: tuple[Admitted, ...]
    expired: tuple[Admitted, ...]
    work: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step made of a draw.

    Attributes:
        experience: what was trained from, or only stored.
        transitions: how many were trained from.
        lags: [B] int64, of what was trained from.
        metrics: what the learner said; None when it made no step.
    """

    experience: Batch | Transitions | Fresh | Likeness
    transitions: int
    lags: NDArray[np.int64]
    metrics: StepMetrics | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much the learner has before it: whether devices make more than it can use.

    Attributes:
        waiting: transitions that could be learned from now and were not yet.
        step: transitions that one step of the learner uses up.
        consumed: transitions used up so far.
    """

    waiting: float
    step: float
    consumed: float


class Source(Protocol):
    """Chunks go in on the event loop; steps of the learner come out of it, one at a time."""

    @property
    def steps(self) -> int:
        """Transitions held."""

    @property
    def fill(self) -> float:
        """How much of what the next step of the learner waits for is there, 0 to 1."""

    @property
    def backlog(self) -> Backlog:
        """How much waits to be learned from."""

    @property
    def cursor(self) -> Cursor:
        """Which journal positions are done with, for a checkpoint."""

    def add(self, items: Iterable[Admitted]) -> None:
        """Takes chunks in."""

    def ready(self) -> bool:
        """Whether there is something to do."""

    async def wait_ready(self, *, unless: Callable[[], bool]) -> None:
        """Waits until it is `ready`, or ``unless`` holds."""

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""

    def take(self, moment: Moment) -> Draw:
        """Takes out what the next step works on; from then to its end nothing is consistent."""

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Works on a draw that has `work`, in a thread."""

    def state_dict(self) -> Mapping[str, object]:
        """What a checkpoint keeps beside the cursor: arrays, numbers, and dicts of them."""


class Bell:
    """Wakes one waiter when something may have changed."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Has the waiter look again."""
        self._rung.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds; it is looked at whenever the bell rings."""
        while not condition():
            self._rung.clear()
            await self._rung.wait()
