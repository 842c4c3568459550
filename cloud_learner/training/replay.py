"""Replay of rollouts: chunks are drawn once, oldest first, as whole batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, collate
from cloud_learner.training.source import Backlog, Bell, Draw, Moment, Stepped
from shoal.ranges import Ranges

if TYPE_CHECKING:
    from cloud_learner.training.learner import Learner


class Replay:
    """Chunks wait here, first in first out, until a batch takes them or they get too old.

    Only chunks of the same length T stack, so each T has its own line. Beyond ``capacity_steps``
    transitions the oldest chunks are evicted: they leave as expired with the next draw, and until
    then the cursor calls them waiting. Used from the event loop.

    >>> replay = Replay(capacity_steps=65_536, batch_steps=2048)
    >>> replay.add([admitted])
    >>> await replay.wait_ready()
    >>> replay.step(learner, replay.take(Moment(learner.updates, max_lag=512)))
    """

    def __init__(
        self, capacity_steps: int, cursor: Cursor | None = None, *, batch_steps: int
    ) -> None:
        self._capacity = capacity_steps
        self._batch_steps = batch_steps
        self._lines: dict[int, deque[Admitted]] = {}
        self._line_steps: dict[int, int] = {}
        self._steps = 0
        self._consumed = 0
        self._evicted: list[Admitted] = []
        self._position = cursor.position if cursor is not None else 0
        self._changed = Bell()

    @property
    def steps(self) -> int:
        """Transitions that wait."""
        return self._steps

    @property
    def backlog(self) -> Backlog:
        """All that waits is to be learned from, once."""
        return Backlog(self._steps, self._batch_steps, self._consumed)

    @property
    def cursor(self) -> Cursor:
        """Which journal positions are done with, for a checkpoint."""
        held = chain(self._evicted, *self._lines.values())
        waiting = (item.position for item in held if item.position <= self._position)
        return Cursor(self._position, Ranges.of(waiting))

    def add(self, items: Iterable[Admitted]) -> None:
        """Puts chunks in, and evicts the oldest beyond the capacity."""
        for item in items:
            steps = item.chunk.steps
            self._lines.setdefault(steps, deque()).append(item)
            self._line_steps[steps] = self._line_steps.get(steps, 0) + item.chunk.transitions
            self._steps += item.chunk.transitions
        while self._steps > self._capacity and self._count() > 1:
            oldest = min(self._lines, key=lambda steps: self._lines[steps][0].position)
            self._evicted.append(self._pop(oldest))
        self._changed.ring()

    @property
    def fill(self) -> float:
        """How full the next batch is, 0 to 1."""
        longest = max(self._line_steps.values(), default=0)
        return 1.0 if self.ready() else min(1.0, longest / self._batch_steps)

    def ready(self) -> bool:
        """Whether ``take`` would find a batch."""
        return self._line_to_draw() is not None

    async def wait_ready(self, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Waits until a batch is there, or ``unless`` holds."""
        await self._changed.wait_for(lambda: self.ready() or unless())

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""
        self._changed.ring()

    def take(self, moment: Moment) -> Draw:
        """Takes the oldest chunks that make up a batch, or a few more.

        Chunks that lag too much are taken out as expired. ``taken`` is empty when too little is
        left. The same chunks in the same order give the same batches.
        """
        expired = sorted(
            [*self._evicted, *self._purge(moment.updates - moment.max_lag)],
            key=lambda item: item.position,
        )
        self._evicted.clear()
        steps = self._line_to_draw()
        taken: list[Admitted] = []
        if steps is not None:
            found = 0
            while found < self._batch_steps and steps in self._lines:
                taken.append(self._pop(steps))
                found += taken[-1].chunk.transitions
            self._consumed += found
        return Draw(tuple(taken), tuple(expired), work=bool(taken))

    def step(self, learner: Learner, draw: Draw) -> Stepped:
        """Trains from the chunks of a draw."""
        batch = collate(draw.taken, updates_now=learner.updates)
        return Stepped(batch, batch.transitions, batch.lags, learner.step(batch))

    def state_dict(self) -> Mapping[str, object]:
        """Nothing: what waits here comes back from the journal."""
        return {}

    def _purge(self, lowest_updates: int) -> list[Admitted]:
        late = [
            item
            for line in self._lines.values()
            for item in line
            if item.version_updates < lowest_updates
        ]
        if not late:
            return []
        gone = {item.position for item in late}
        for steps, line in list(self._lines.items()):
            kept = deque(item for item in line if item.position not in gone)
            self._set_line(steps, kept)
        self._position = max(self._position, *gone)
        return late

    def _set_line(self, steps: int, line: deque[Admitted]) -> None:
        held = sum(item.chunk.transitions for item in line)
        self._steps += held - self._line_steps[steps]
        if line:
            self._lines[steps], self._line_steps[steps] = line, held
        else:
            del self._lines[steps], self._line_steps[steps]

    def _pop(self, steps: int) -> Admitted:
        line = self._lines[steps]
        item = line.popleft()
        self._steps -= item.chunk.transitions
        self._line_steps[steps] -= item.chunk.transitions
        if not line:
            del self._lines[steps], self._line_steps[steps]
        self._position = max(self._position, item.position)
        return item

    def _line_to_draw(self) -> int | None:
        """The line to draw from: a full one, the oldest first; when replay is full, the longest."""
        full = [steps for steps, held in self._line_steps.items() if held >= self._batch_steps]
        if full:
            return min(full, key=lambda steps: self._lines[steps][0].position)
        if self._steps >= self._capacity and self._line_steps:
            return max(self._line_steps, key=lambda steps: self._line_steps[steps])
        return None

    def _count(self) -> int:
        return sum(len(line) for line in self._lines.values())
