"""Says a thing at once, and what follows of its kind together, once an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MAX_KINDS: Final = 256
"""Kinds that are told apart; who floods with new ones is told of as one kind."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Held(Generic[V]):
    count: int
    last: V | None
    due_s: float


class Tally(Generic[K, V]):
    """Counts things by kind. Nothing is lost: what is not told now is told later, with its count.

        tally = Tally(10.0, other="other", clock=time.monotonic)
        tally.add("topic", "pi-1 published as pi-2")
        for kind, count, last in tally.take_due(): ...

    Kinds that were told, and did not come again within an interval, are forgotten.
    """

    def __init__(self, interval_s: float, *, other: K, clock: Callable[[], float]) -> None:
        """Has nothing to tell.

        Args:
            interval_s: Between two times that a kind is told.
            other: The kind of what comes when there are too many.
            clock: Monotonic seconds.
        """
        self._interval_s = interval_s
        self._other = other
        self._clock = clock
        self._held: dict[K, _Held[V]] = {}

    def add(self, kind: K, thing: V) -> None:
        """Counts one."""
        if kind not in self._held and len(self._held) >= MAX_KINDS:
            kind = self._other
        held = self._held.setdefault(kind, _Held(0, None, self._clock()))
        held.count += 1
        held.last = thing

    def take_due(self) -> list[tuple[K, int, V]]:
        """What is to be told now: each kind, how often it came, and the last that did."""
        now_s = self._clock()
        due = []
        for kind, held in list(self._held.items()):
            if now_s < held.due_s:
                continue
            if held.count == 0 or held.last is None:
                del self._held[kind]
                continue
            due.append((kind, held.count, held.last))
            self._held[kind] = _Held(0, None, now_s + self._interval_s)
        return due

    def next_due_s(self) -> float | None:
        """When something is to be told next, on the clock; None: nothing is held."""
        return min((held.due_s for held in self._held.values() if held.count), default=None)
