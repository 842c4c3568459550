"""Lockstep where transitions are trained from: the ring grows by whole turns, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.source import Backlog, Bell, Draw, Moment, Stepped
from cloud_learner.training.transition_replay import TransitionReplay

if TYPE_CHECKING:
    from cloud_learner.training.learner import Learner


class LockstepTransitions:
    """All chunks of a version go into the ring in the order of their keys; then all updates due.

    A version is published when none is due any more, and devices wait for it. So every version
    depends on the ones before it alone. Used from the event loop, but for `step`.

    >>> replay = LockstepTransitions(Lockstep(...), TransitionReplay(...), version=lambda: newest)
    >>> replay.add(admitted)
    >>> while replay.ready():
    ...     replay.step(learner, replay.take(Moment(learner.updates)))

    Attributes:
        turns: Who has made what.
        transitions: The ring, and how often to learn from it.
    """

    def __init__(
        self, turns: Lockstep, transitions: TransitionReplay, *, version: Callable[[], int]
    ) -> None:
        """Starts as empty as its parts.

        Args:
            turns: Collects a turn.
            transitions: Learns from them.
            version: The newest version published.
        """
        self.turns = turns
        self.transitions = transitions
        self._version = version
        self._taken_version = 0
        self._changed = Bell()

    @property
    def steps(self) -> int:
        """Transitions held, and those that wait."""
        return self.turns.steps + self.transitions.steps

    @property
    def fill(self) -> float:
        """How near the next gradient steps are, 0 to 1: of the warm-up at first."""
        return self.transitions.fill

    @property
    def backlog(self) -> Backlog:
        """None, ever: devices make what is waited for, and wait themselves."""
        return self.turns.backlog

    @property
    def cursor(self) -> Cursor:
        """Which journal positions are in the ring or were, for a checkpoint."""
        return self.turns.cursor

    def add(self, items: Iterable[Admitted]) -> None:
        """Has chunks wait for their turn."""
        self.turns.add(items)
        self._changed.ring()

    def ready(self) -> bool:
        """Whether updates are due, or a turn is whole and the version before it is out."""
        return self.transitions.ready() or self._whole()

    async def wait_ready(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until it is `ready`, or ``unless`` holds."""
        await self._changed.wait_for(lambda: self.ready() or unless())

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""
        self._changed.ring()

    def take(self, moment: Moment) -> Draw:
        """Takes a turn, or, while updates are due, nothing but the right to make one."""
        if self.transitions.ready() or not self._whole():
            return self.transitions.take(moment)
        turn = self.turns.take(moment)
        self._taken_version = turn.taken[0].chunk.policy_version
        self.transitions.add(turn.taken)
        draw = self.transitions.take(Moment(moment.updates))
        return Draw(draw.taken, turn.expired, work=draw.work)

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Puts the chunks of a turn into the ring, and makes one of the updates that are due."""
        return self.transitions.step(learner, draw)

    def state_dict(self) -> Mapping[str, object]:
        """That of the ring: what waits for its turn comes back from the journal."""
        return self.transitions.state_dict()

    def _whole(self) -> bool:
        return self._version() != self._taken_version and self.turns.ready()
