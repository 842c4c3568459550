"""Replay of transitions: chunks go into a ring, and are drawn from it many times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from cloud_learner.config import require
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, Fresh
from cloud_learner.training.rate_limiter import LimiterState, RateLimiter
from cloud_learner.training.source import Backlog, Bell, Draw, Moment, Stepped
from cloud_learner.training.transition_ring import RingState, TransitionRing, slot_bytes
from shoal.errors import ConfigError
from shoal.logs import get_logger
from shoal.ranges import Ranges
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk

if TYPE_CHECKING:
    from cloud_learner.training.learner import Learner

_log = get_logger("transition_replay")


@dataclass(frozen=True, slots=True)
class Sampling:
    """What an algorithm wants of its replay. Fields of its `Settings` of the same names say so.

    Attributes:
        batch_size: Transitions of one gradient step.
        gradient_steps: Gradient steps that `learn` makes of what it is given, which is
            `batch_size * gradient_steps` transitions.
        learning_starts: Transitions that come before the first of them.
        updates_per_transition: Gradient steps for each transition from then on.
        n_step: Steps that a transition may span.
        gamma: Discount a step.
        priority_alpha: How much priorities count when drawing; 0 draws uniformly.
        priority_beta: How far importance weights undo that at first.
        priority_anneal_updates: Updates after which they undo it wholly.
    """

    batch_size: int = 256
    gradient_steps: int = 1
    learning_starts: int = 1000
    updates_per_transition: float = 1.0
    n_step: int = 1
    gamma: float = 0.99
    priority_alpha: float = 0.0
    priority_beta: float = 0.4
    priority_anneal_updates: int = 100_000

    def __post_init__(self) -> None:
        for key in ("batch_size", "gradient_steps", "n_step"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        for key in ("learning_starts", "priority_anneal_updates"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more")
        for key in ("gamma", "priority_alpha", "priority_beta"):
            require(0.0 <= getattr(self, key) <= 1.0, key, getattr(self, key), "0 to 1")
        require(
            self.updates_per_transition > 0.0,
            "updates_per_transition",
            self.updates_per_transition,
            "more than 0",
        )

    @classmethod
    def of(cls, settings: object) -> Sampling:
        """What an algorithm's settings say, and the defaults for what they do not.

        Raises:
            ConfigError: A value is out of its range.
        """
        names = cls.__dataclass_fields__
        return cls(**{name: getattr(settings, name) for name in names if hasattr(settings, name)})


class TransitionReplay:
    """A ring of transitions and the rule how often to learn from it.

    Chunks wait until the next step puts them in; with that they count as trained. From then on the
    ring forgets the oldest as it fills, which is no expiry. Used from the event loop, but for
    `step`, which touches only what the event loop leaves alone meanwhile.

    >>> replay = TransitionReplay(100_000, Sampling(), seed=0)
    >>> replay.add([admitted])
    >>> replay.step(learner, replay.take(Moment(learner.updates)))
    """

    def __init__(
        self,
        capacity_steps: int,
        sampling: Sampling,
        *,
        seed: int,
        cursor: Cursor | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Starts empty.

        Args:
            capacity_steps: Slots of the ring.
            sampling: What the algorithm wants.
            seed: Of the draws.
            cursor: Which journal positions are in the ring or were.
            max_bytes: Of the ring, once `fit` is told the spaces; None for no bound.

        Raises:
            ConfigError: The ring could never hold what learning waits for.
        """
        require(
            2 * sampling.learning_starts <= capacity_steps,
            "training.settings.learning_starts",
            sampling.learning_starts,
            f"at most half of training.replay_steps ({capacity_steps})",
        )
        self._sampling = sampling
        self._asked_steps, self._max_bytes, self._seed = capacity_steps, max_bytes, seed
        self._ring = TransitionRing(capacity_steps, seed=seed, alpha=sampling.priority_alpha)
        self._limiter = RateLimiter(sampling.learning_starts, sampling.updates_per_transition)
        self._pending: list[Admitted] = []
        self._pending_steps = 0
        self._spent = 0
        self._chunk_steps: dict[str, int] = {}
        self._position = cursor.position if cursor is not None else 0
        self._changed = Bell()

    def fit(self, spec: EnvSpec) -> None:
        """Bounds an empty ring to what may be held of these spaces; before anything is added.

        Raises:
            ConfigError: That could never hold what learning waits for.
        """
        alpha, asked = self._sampling.priority_alpha, self._asked_steps
        each = slot_bytes(spec, prioritized=alpha > 0.0)
        fits = asked if self._max_bytes is None else min(asked, self._max_bytes // each)
        if fits < max(1, 2 * self._sampling.learning_starts):
            needed = max(1, 2 * self._sampling.learning_starts) * each
            raise ConfigError(
                f"training.replay_bytes = {self._max_bytes} holds {fits} transitions of {each} "
                f"bytes, and training.settings.learning_starts = {self._sampling.learning_starts} "
                f"may be half of them at most: set replay_bytes to {needed} or more"
            )
        if fits < asked:
            _log.warning(
                "replay_bounded",
                replay_steps=fits,
                asked=asked,
                replay_bytes=self._max_bytes,
                bytes_each=each,
            )
        self._ring = TransitionRing(fits, seed=self._seed, alpha=alpha)

    @property
    def steps(self) -> int:
        """Transitions that can be drawn, and those that wait to be."""
        return self._ring.size + self._pending_steps

    @property
    def fill(self) -> float:
        """How near the next gradient steps are, 0 to 1: of the warm-up at first."""
        return self._limiter.fill(self._sampling.gradient_steps, size=self._ring.size)

    @property
    def backlog(self) -> Backlog:
        """What transitions paid for and was not learned yet, in transitions.

        A step counts for no less than one chunk of each device, as these come all at once.
        """
        each = self._sampling.updates_per_transition
        credit = max(0.0, self._limiter.credit) / each
        step = max(self._sampling.gradient_steps / each, float(sum(self._chunk_steps.values())))
        return Backlog(credit + self._pending_steps, step, self._spent / each)

    @property
    def cursor(self) -> Cursor:
        """Which journal positions are in the ring or were, for a checkpoint."""
        waiting = (item.position for item in self._pending if item.position <= self._position)
        return Cursor(self._position, Ranges.of(waiting))

    def add(self, items: Iterable[Admitted]) -> None:
        """Has chunks wait for the next step."""
        for item in items:
            self._pending.append(item)
            self._pending_steps += item.chunk.transitions
            self._chunk_steps[item.key.device_id] = item.chunk.transitions
        self._changed.ring()

    def ready(self) -> bool:
        """Whether chunks wait, or learning is due."""
        return bool(self._pending) or self._due()

    async def wait_ready(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until a chunk comes or learning is due, or ``unless`` holds."""
        await self._changed.wait_for(lambda: self.ready() or unless())

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""
        self._changed.ring()

    def take(self, moment: Moment) -> Draw:
        """Takes the chunks that wait; those that lag too much are expired."""
        lowest = moment.updates - moment.max_lag
        pending, self._pending, self._pending_steps = self._pending, [], 0
        self._position = max(self._position, *(item.position for item in pending), 0)
        taken = tuple(item for item in pending if item.version_updates >= lowest)
        expired = tuple(item for item in pending if item.version_updates < lowest)
        return Draw(taken, expired, work=bool(taken) or self._due())

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Puts the chunks of a draw into the ring, and learns when that is due."""
        for item in draw.taken:
            self._ring.insert(item)
            self._limiter.insert(item.chunk.transitions)
            learner.observe(Fresh.of(item.chunk))
        if not self._due():
            newest = Fresh.of(draw.taken[-1].chunk)
            return Stepped(newest, 0, np.zeros(0, np.int64), None)
        sampling = self._sampling
        drawn = self._ring.draw(
            sampling.batch_size * sampling.gradient_steps,
            n_step=sampling.n_step,
            gamma=sampling.gamma,
            beta=self._beta(learner.updates),
            updates_now=learner.updates,
        )
        metrics = learner.step(drawn)
        self._limiter.spend(sampling.gradient_steps)
        self._spent += sampling.gradient_steps
        errors = getattr(learner.algorithm, "errors", None)
        if errors is not None:
            self._ring.prioritize(drawn, errors)
        return Stepped(drawn, drawn.transitions, drawn.lags, metrics)

    def state_dict(self) -> Mapping[str, object]:
        """Counters, and which chunks lie where; not the transitions, which the journal holds."""
        return {"limiter": self._limiter.state_dict(), "ring": self._ring.state_dict()}

    @staticmethod
    def held(state: Mapping[str, object]) -> frozenset[int]:
        """The journal positions of the chunks that a state needs."""
        ring = cast("RingState | None", state.get("ring"))
        return frozenset(ring["held"][:, 0].tolist()) if ring is not None else frozenset()

    def load_state_dict(self, state: Mapping[str, object], chunks: Mapping[int, Chunk]) -> None:
        """Goes on from a checkpoint; before anything is added.

        Args:
            state: What `state_dict` gave.
            chunks: By journal position, those of `held` that the journal still has.
        """
        if "ring" not in state:
            return
        self._ring.load_state_dict(cast("RingState", state["ring"]), chunks)
        self._limiter.load_state_dict(cast("LimiterState", state["limiter"]))

    def _due(self) -> bool:
        return self._limiter.allows(self._sampling.gradient_steps, size=self._ring.size)

    def _beta(self, updates: int) -> float:
        sampling = self._sampling
        done = min(1.0, updates / max(1, sampling.priority_anneal_updates))
        return sampling.priority_beta + done * (1.0 - sampling.priority_beta)
