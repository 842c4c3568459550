"""Chunks that wait for their gradient: bounded, and what overflows is still told about."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shoal.episodes import Episode
from shoal.trajectory import Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A chunk whose turn has come.

    Attributes:
        chunk: to compute from.
        episodes: that ended in it, or in chunks given up before it.
        transitions: of all of them.
    """

    chunk: Chunk
    episodes: tuple[Episode, ...]
    transitions: int


@dataclass(slots=True)
class _GivenUp:
    """Chunks that nothing is computed from."""

    episodes: list[Episode] = field(default_factory=list)
    transitions: int = 0


class GradientQueue:
    """Filled by the control thread, which never waits; emptied by the uplink of gradients.

    When it is full the oldest chunk goes: the newest is nearest to the policy that is trained.

    queue = GradientQueue(4)
    queue.put(chunk)
    waiting = queue.take()        # None when there is nothing

    Attributes:
        dropped: Chunks that went since it was full.
    """

    def __init__(self, most: int) -> None:
        """Makes an empty queue.

        Args:
            most: Chunks that it holds.
        """
        self.dropped = 0
        self._most = most
        self._lock = threading.Lock()
        self._chunks: deque[Chunk] = deque()
        self._given_up = _GivenUp()
        self._listeners: tuple[Callable[[], object], ...] = ()

    def __len__(self) -> int:
        return len(self._chunks)

    def put(self, chunk: Chunk) -> None:
        """Adds the newest chunk."""
        with self._lock:
            if len(self._chunks) == self._most:
                oldest = self._chunks.popleft()
                self._given_up.episodes.extend(oldest.episodes)
                self._given_up.transitions += oldest.transitions
                self.dropped += 1
            self._chunks.append(chunk)
        for listener in self._listeners:
            listener()

    def take(self) -> Waiting | None:
        """The oldest chunk; None when there is none."""
        with self._lock:
            if not self._chunks:
                return None
            chunk, before = self._chunks.popleft(), self._given_up
            self._given_up = _GivenUp()
        return Waiting(
            chunk, (*before.episodes, *chunk.episodes), before.transitions + chunk.transitions
        )

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Calls `listener`, from the control thread, after each chunk, within the block."""
        self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
