"""Whether the control thread goes on: it beats or acts, or waits for a time that it said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Heart:
    """Beaten by the control thread, felt by another.

    heart = Heart()
    heart.beat()                  # in the control thread, at each turn
    heart.felt(counters.steps)    # in another: did anything move since the last time?
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Has not beaten.

        Args:
            clock: Monotonic, seconds.
        """
        self._clock = clock
        self._beats = 0
        self._rests_until_s = -1.0
        self._before = (-1, -1)

    def beat(self) -> None:
        """The control thread goes on."""
        self._beats += 1

    def rest(self, seconds: float) -> None:
        """The control thread waits so long, and means to."""
        self._rests_until_s = self._clock() + seconds

    def felt(self, steps: int) -> bool:
        """Whether it beat, acted, or means to wait, since this was last asked.

        Args:
            steps: How many it has acted.
        """
        now = (self._beats, steps)
        moved, self._before = now != self._before, now
        return moved or self._clock() <= self._rests_until_s


class RestingClock:
    """The machine's clock for an actor: what it waits for is told to the heart.

    Actor(environments, clock=RestingClock(heart), ...)
    """

    def __init__(self, heart: Heart) -> None:
        """Waits for nothing yet.

        Args:
            heart: Told of each wait.
        """
        self._heart = heart

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return after `seconds`, or at once when `stop` is set."""
        self._heart.rest(seconds)
        stop.wait(seconds)
