"""The updates in which only the critic learns, as it knows nothing of a policy that was given."""

from __future__ import annotations

from typing import Final

_NOT: Final = 0


class CriticWarmup:
    """Counts them.

    A policy from a file meets a critic with random weights, whose advantages are noise: without
    such updates they undo the policy before the critic is of use.

    >>> warmup = CriticWarmup(500)
    >>> warmup.begin(updates=0)
    >>> warmup.active
    True
    >>> warmup.ends(updates=500), warmup.active
    (True, False)

    Attributes:
        until: The count of updates at which it ends; 0 while there is none.
    """

    def __init__(self, length: int) -> None:
        """Has it last `length` updates, once it begins."""
        self._length = length
        self.until = _NOT

    @property
    def active(self) -> bool:
        """Whether only the critic learns."""
        return self.until != _NOT

    def begin(self, updates: int) -> None:
        """The policy was given when so many updates had been made."""
        self.until = updates + self._length if self._length else _NOT

    def ends(self, updates: int) -> bool:
        """Whether it ends now, which it says once."""
        if not self.active or updates < self.until:
            return False
        self.until = _NOT
        return True
