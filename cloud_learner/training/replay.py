"""Replay: the bounded in-memory store that batches are drawn from, oldest chunk first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shoal.ranges import Ranges
from shoal.tensors import Array
from shoal.trajectory import Chunk, ChunkKey


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """One chunk that the journal holds and the learner may train from.

    Attributes:
        key: who made it.
        position: its position in the journal.
        chunk: its T x N transitions, all under one policy version.
        version_updates: the learner's optimiser updates when that version was published.
    """

    key: ChunkKey
    position: int
    chunk: Chunk
    version_updates: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one ``learner.step`` trains from: whole chunks side by side, B = sum of their N.

    Attributes:
        observations: [T+1, B, *observation], the environment's own dtype.
        actions: [T, B, *action], int64 or float32, raw.
        log_probs: [T, B] float32, of the int8 graph that sampled.
        rewards: [T, B] float32.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        final_index: [K] int32, flat ``t * B + b``, increasing.
        final_observations: [K, *observation], the true last observation of each ended episode.
        lags: [B] int64, optimiser updates between the version that acted and now.
        positions: the chunks' positions in the journal, in the order of the columns.
    """

    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_index: NDArray[np.int32]
    final_observations: Array
    lags: NDArray[np.int64]
    positions: tuple[int, ...]

    @property
    def transitions(self) -> int:
        """How many transitions the batch holds: T x B."""
        return int(self.rewards.size)


@dataclass(frozen=True, slots=True)
class Draw:
    """What one draw took out of replay: chunks to train from, and chunks that came too late."""

    taken: tuple[Admitted, ...]
    expired: tuple[Admitted, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Which journal positions replay is done with.

    Attributes:
        position: the highest position taken out of replay so far.
        waiting: positions at or below it that still wait in replay.
    """

    position: int
    waiting: Ranges

    def covers(self, position: int) -> bool:
        """Whether replay is done with ``position``."""
        return position <= self.position and not self.waiting.contains(position)

    def upto(self, last: int) -> Cursor:
        """The same for a journal that ends at ``last``: an older one, or a new one."""
        if self.position <= last:
            return self
        return Cursor(last, self.waiting.intersection(Ranges.upto(last + 1)))


class Replay:
    """Chunks wait here, first in first out, until a batch takes them or they get too old.

    Only chunks of the same length T stack, so each T has its own line. Beyond ``capacity_steps``
    transitions the oldest chunks are evicted: they leave as expired with the next draw, and until
    then the cursor calls them waiting. Used from the event loop.

    >>> replay = Replay(capacity_steps=65_536)
    >>> replay.add([admitted])
    >>> await replay.wait_ready(2048)
    >>> draw = replay.take(2048, updates_now=12, max_lag=512)
    >>> batch = collate(draw.taken, updates_now=12)
    """

    def __init__(self, capacity_steps: int, cursor: Cursor | None = None) -> None:
        self._capacity = capacity_steps
        self._lines: dict[int, deque[Admitted]] = {}
        self._line_steps: dict[int, int] = {}
        self._steps = 0
        self._evicted: list[Admitted] = []
        self._position = cursor.position if cursor is not None else 0
        self._changed = asyncio.Event()

    @property
    def steps(self) -> int:
        """Transitions that wait."""
        return self._steps

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
        self._changed.set()

    def ready(self, batch_steps: int) -> bool:
        """Whether ``take`` would find a batch of ``batch_steps`` transitions."""
        return self._line_for(batch_steps) is not None

    async def wait_ready(
        self, batch_steps: int, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Waits until a batch of ``batch_steps`` transitions is there, or ``unless`` holds."""
        while not self.ready(batch_steps) and not unless():
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """Has whoever waits look again at what it waits for."""
        self._changed.set()

    def take(self, batch_steps: int, *, updates_now: int, max_lag: int) -> Draw:
        """Takes the oldest chunks that make up ``batch_steps`` transitions, or a few more.

        Chunks that lag more than ``max_lag`` updates are taken out as expired. ``taken`` is empty
        when too little is left. The same chunks in the same order give the same batches.
        """
        expired = sorted(
            [*self._evicted, *self._purge(updates_now - max_lag)], key=lambda item: item.position
        )
        self._evicted.clear()
        steps = self._line_for(batch_steps)
        taken: list[Admitted] = []
        if steps is not None:
            found = 0
            while found < batch_steps and steps in self._lines:
                taken.append(self._pop(steps))
                found += taken[-1].chunk.transitions
        return Draw(tuple(taken), tuple(expired))

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

    def _line_for(self, batch_steps: int) -> int | None:
        """The line to draw from: a full one, the oldest first; when replay is full, the longest."""
        full = [steps for steps, held in self._line_steps.items() if held >= batch_steps]
        if full:
            return min(full, key=lambda steps: self._lines[steps][0].position)
        if self._steps >= self._capacity and self._line_steps:
            return max(self._line_steps, key=lambda steps: self._line_steps[steps])
        return None

    def _count(self) -> int:
        return sum(len(line) for line in self._lines.values())


def collate(taken: Sequence[Admitted], *, updates_now: int) -> Batch:
    """Lays chunks of the same length side by side.

    Args:
        taken: one or more chunks with the same T.
        updates_now: the learner's optimiser updates, for the lags.
    """
    chunks = [item.chunk for item in taken]
    width = sum(chunk.envs for chunk in chunks)
    indices: list[NDArray[np.int64]] = []
    first = 0
    for chunk in chunks:
        flat = chunk.final_index.astype(np.int64)
        indices.append(flat // chunk.envs * width + flat % chunk.envs + first)
        first += chunk.envs
    final_index = np.concatenate(indices)
    order = np.argsort(final_index, kind="stable")
    finals = np.concatenate([chunk.final_observations for chunk in chunks])
    lags = np.concatenate(
        [
            np.full(item.chunk.envs, updates_now - item.version_updates, dtype=np.int64)
            for item in taken
        ]
    )
    return Batch(
        observations=np.concatenate([chunk.observations for chunk in chunks], axis=1),
        actions=np.concatenate([chunk.actions for chunk in chunks], axis=1),
        log_probs=np.concatenate([chunk.log_probs for chunk in chunks], axis=1),
        rewards=np.concatenate([chunk.rewards for chunk in chunks], axis=1),
        terminated=np.concatenate([chunk.terminated for chunk in chunks], axis=1),
        truncated=np.concatenate([chunk.truncated for chunk in chunks], axis=1),
        final_index=final_index[order].astype(np.int32),
        final_observations=finals[order],
        lags=lags,
        positions=tuple(item.position for item in taken),
    )
