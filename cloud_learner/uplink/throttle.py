"""Says the same thing only so often, and how many times it would have been said."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

MAX_KEYS: Final = 4096


@dataclass(slots=True)
class _Told:
    at_s: float
    held: int


class Throttle:
    """Lets each kind of thing through once per interval, with the count since the last time.

    throttle = Throttle(10.0)
    count = throttle.count_to_tell(("pi-1", "non_finite"), 3)    # 0: say nothing now
    """

    def __init__(self, interval_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._told: dict[Hashable, _Told] = {}

    def count_to_tell(self, kind: Hashable, count: int = 1) -> int:
        """Adds `count`; the whole count when it is time to tell, else 0."""
        now_s = self._clock()
        told = self._told.get(kind)
        if told is not None and now_s - told.at_s < self._interval_s:
            told.held += count
            return 0
        if told is None and len(self._told) >= MAX_KEYS:
            self._told.pop(next(iter(self._told)))
        self._told[kind] = _Told(now_s, 0)
        return count + (told.held if told is not None else 0)
