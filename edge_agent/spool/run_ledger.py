"""What became of every chunk of one run, as the device knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.ranges import Ranges

MAX_SPANS_KEPT: Final = 1024
"""Spans of `dropped` and of `expired` kept for one run; older ones are joined, see `coalesce`."""
NOTHING: Final = Ranges()


@dataclass(frozen=True, slots=True)
class RunLedger:
    """What became of every chunk of one run; what is in none of the sets was acknowledged.

    Attributes:
        run_id: 16 bytes.
        produced: chunks made so far; the next sequence number.
        spooled: on disk, not yet acknowledged.
        dropped: given up by this device.
        expired: too old to be of use to the learner when their turn came.
    """

    run_id: bytes
    produced: int = 0
    spooled: Ranges = NOTHING
    dropped: Ranges = NOTHING
    expired: Ranges = NOTHING

    def after(
        self,
        *,
        produced: int = 0,
        spooled: Ranges = NOTHING,
        dropped: Ranges = NOTHING,
        expired: Ranges = NOTHING,
    ) -> RunLedger:
        """The ledger once these chunks were made, stored, dropped and expired."""
        return RunLedger(
            self.run_id,
            max(self.produced, produced),
            self.spooled.union(spooled).difference(dropped).difference(expired),
            coalesce(self.dropped.union(dropped), MAX_SPANS_KEPT),
            coalesce(self.expired.union(expired), MAX_SPANS_KEPT),
        )

    def counts_like(self, other: RunLedger) -> bool:
        """Whether the file's row of a run is the same; what is spooled shows in its chunks."""
        return (self.produced, self.dropped, self.expired) == (
            other.produced,
            other.dropped,
            other.expired,
        )


def coalesce(ranges: Ranges, limit: int) -> Ranges:
    """Joins the oldest spans until at most `limit` are left: a superset, on purpose.

    What it adds was settled long ago or will be, and the learner's own record comes first in every
    sum, so the totals of an audit stay exact.
    """
    spare = len(ranges.spans) - limit
    if spare <= 0:
        return ranges
    return Ranges(((ranges.spans[0][0], ranges.spans[spare][1]), *ranges.spans[spare + 1 :]))
