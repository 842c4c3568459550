"""How many updates the transitions that came in pay for: a pure rule, without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class LimiterState(TypedDict):
    """What a checkpoint keeps."""

    inserted: int
    credit: float


@dataclass(slots=True)
class RateLimiter:
    """Holds learning to so many updates for each new transition.

    While all settings stay as they are,

        updates <= updates_per_transition * max(0, inserted - min_size)

    and an update is due as soon as that allows it. The right side less the left is kept as credit,
    so a resume with other settings changes what later transitions are worth, not what earlier ones
    were: neither a burst of updates nor a standstill follows. What is inserted is never held back.

    Attributes:
        min_size: Transitions that must have come, and still be there, before learning starts.
        updates_per_transition: The replay ratio.
        inserted: Transitions since training began.
        credit: Updates that are due and not made yet.

    >>> limiter = RateLimiter(min_size=1000, updates_per_transition=0.5)
    >>> limiter.insert(1064)
    >>> limiter.allows(32, size=1064)
    True
    >>> limiter.spend(32)
    """

    min_size: int
    updates_per_transition: float
    inserted: int = 0
    credit: float = 0.0

    def insert(self, transitions: int) -> None:
        """Counts new transitions; those that fill up `min_size` pay for nothing."""
        paying = min(transitions, max(0, self.inserted + transitions - self.min_size))
        self.inserted += transitions
        self.credit += paying * self.updates_per_transition

    def allows(self, updates: int, *, size: int) -> bool:
        """Whether so many updates may be made from `size` transitions."""
        return size >= max(1, self.min_size) and self.credit >= updates

    def spend(self, updates: int) -> None:
        """Counts updates that were made, or tried."""
        self.credit -= updates

    def fill(self, updates: int, *, size: int) -> float:
        """How near so many updates are, 0 to 1: of the warm-up at first, then of the next step."""
        if size < self.min_size:
            return size / self.min_size
        return min(1.0, max(0.0, self.credit / updates))

    def state_dict(self) -> LimiterState:
        """Its counters."""
        return LimiterState(inserted=self.inserted, credit=self.credit)

    def load_state_dict(self, state: LimiterState) -> None:
        """Goes on from a checkpoint's counters; its own settings stay."""
        self.inserted, self.credit = state["inserted"], state["credit"]
