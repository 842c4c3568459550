"""Challenges that were given out and not answered yet, and how often who may ask for one."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from shoal.enrollment import CHALLENGE_BYTES

LIFETIME_S: Final = 60.0
MAX_OPEN: Final = 4096
"""Challenges kept; beyond, the oldest goes, and whom it was for asks again."""
MAX_ADDRESSES: Final = 4096


class Challenges:
    """Each is good for one answer within a minute.

    challenge = challenges.issue()
    challenges.redeem(challenge)  # True, once
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """Holds none.

        Args:
            clock: Monotonic, seconds.
        """
        self._clock = clock
        self._open: OrderedDict[bytes, float] = OrderedDict()

    def issue(self) -> bytes:
        """A new one, 32 bytes."""
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._open[challenge] = self._clock()
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return challenge

    def redeem(self, challenge: bytes) -> bool:
        """Whether it was given out within the minute and not answered before."""
        issued_s = self._open.pop(challenge, None)
        return issued_s is not None and self._clock() - issued_s <= LIFETIME_S


class Throttle:
    """A token bucket for each address: a burst of `burst`, and `per_minute` after it.

    throttle.admit("10.0.0.7")
    """

    def __init__(self, *, per_minute: float, burst: int, clock: Callable[[], float]) -> None:
        """Has heard of nobody.

        Args:
            per_minute: Requests that an address may send in the long run.
            burst: How many of them at once.
            clock: Monotonic, seconds.
        """
        self._rate = per_minute / 60.0
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, address: str) -> bool:
        """Whether a request may be looked at now."""
        now_s = self._clock()
        level, since_s = self._buckets.pop(address, (float(self._burst), now_s))
        level = min(float(self._burst), level + (now_s - since_s) * self._rate)
        admitted = level >= 1.0
        self._buckets[address] = (level - admitted, now_s)
        if len(self._buckets) > MAX_ADDRESSES:  # the one that was silent for longest is forgotten
            self._buckets.popitem(last=False)
        return admitted
