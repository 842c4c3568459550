"""How far replay has come in the journal."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.ranges import Ranges


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
