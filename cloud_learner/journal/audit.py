"""The conservation law: produced = trained + expired + dropped + rejected + in flight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from shoal.errors import WireError
from shoal.ranges import Ranges
from shoal.v1 import device_pb2, fleet_pb2

_NONE = Ranges()
_TOO_MANY = 1 << 62


class Disposition(StrEnum):
    """What the learner decided about a chunk; it has one at any time, and is counted once."""

    TRAINED = "trained"
    EXPIRED = "expired"
    REJECTED = "rejected"


class RunKey(NamedTuple):
    """One run of one device. A tuple, since every message of a fleet looks something up by it."""

    device_id: str
    run_id: bytes


_MOST: Final = 2**64 - 1
"""What a field of the message holds."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The sequence numbers of one run that the learner has durably decided on: three sets apart.

    >>> Decided().with_chunks(Ranges.of([7]), Disposition.TRAINED).contains(7)
    True
    """

    trained: Ranges = _NONE
    expired: Ranges = _NONE
    rejected: Ranges = _NONE

    @property
    def settled(self) -> Ranges:
        """All of them."""
        return self.trained.union(self.expired).union(self.rejected)

    def of(self, disposition: Disposition) -> Ranges:
        """Those with one disposition."""
        match disposition:
            case Disposition.TRAINED:
                return self.trained
            case Disposition.EXPIRED:
                return self.expired
            case Disposition.REJECTED:
                return self.rejected

    def contains(self, seq: int) -> bool:
        """Whether the learner has decided on ``seq``."""
        return (
            self.trained.contains(seq) or self.expired.contains(seq) or self.rejected.contains(seq)
        )

    def with_chunks(self, seqs: Ranges, disposition: Disposition) -> Decided:
        """The same with ``seqs`` moved to ``disposition``, whatever they had before."""
        return Decided(
            **{
                each.value: (
                    self.of(each).union(seqs)
                    if each is disposition
                    else self.of(each).difference(seqs)
                )
                for each in Disposition
            }
        )


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a device last said about the chunks of one of its runs: one consistent snapshot.

    Attributes:
        produced: chunks made so far; their sequence numbers are [0, produced).
        spooled: those on its disk, not yet acknowledged.
        dropped: those it gave up.
        expired: those that were too old to be of use when their turn came; they were never sent.
    """

    produced: int
    spooled: Ranges
    dropped: Ranges
    expired: Ranges = _NONE

    @classmethod
    def from_pb(cls, ledger: device_pb2.RunLedger) -> RunReport:
        """Reads the message.

        Raises:
            WireError: a span is malformed, there are too many, or a count is out of range.
        """
        if ledger.produced >= _TOO_MANY:
            raise WireError(f"ledger: {ledger.produced} chunks produced is out of range")
        made = Ranges.upto(ledger.produced)
        return cls(
            produced=ledger.produced,
            spooled=Ranges.from_pb(ledger.spooled).intersection(made),
            dropped=Ranges.from_pb(ledger.dropped).intersection(made),
            expired=Ranges.from_pb(ledger.expired).intersection(made),
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """Where every chunk is. ``missing`` counts those that nobody can account for.

    The parts of one run are disjoint sets of [0, produced), so no run has fewer than 0 missing,
    and in a sum a loss here cannot hide behind an excess there.

    >>> audit_run(RunReport(2, Ranges(), Ranges()), Decided(trained=Ranges.upto(1))).missing
    1
    """

    produced: int = 0
    trained: int = 0
    expired: int = 0
    dropped: int = 0
    rejected: int = 0
    in_flight: int = 0

    @property
    def missing(self) -> int:
        """Chunks that were made and are nowhere."""
        return self.produced - (
            self.trained + self.expired + self.dropped + self.rejected + self.in_flight
        )

    @property
    def balanced(self) -> bool:
        """Whether the conservation law holds."""
        return self.missing == 0

    def plus(self, other: Audit) -> Audit:
        """The sum."""
        return Audit(
            produced=self.produced + other.produced,
            trained=self.trained + other.trained,
            expired=self.expired + other.expired,
            dropped=self.dropped + other.dropped,
            rejected=self.rejected + other.rejected,
            in_flight=self.in_flight + other.in_flight,
        )

    @classmethod
    def sum(cls, audits: Iterable[Audit]) -> Audit:
        """The sum of many, without one in between."""
        produced = trained = expired = dropped = rejected = in_flight = 0
        for audit in audits:
            produced += audit.produced
            trained += audit.trained
            expired += audit.expired
            dropped += audit.dropped
            rejected += audit.rejected
            in_flight += audit.in_flight
        return cls(produced, trained, expired, dropped, rejected, in_flight)

    def to_pb(self) -> fleet_pb2.Audit:
        """As a message; a device that lies may report more in all than it can hold."""
        return fleet_pb2.Audit(
            produced=min(self.produced, _MOST),
            trained=min(self.trained, _MOST),
            expired=min(self.expired, _MOST),
            dropped=min(self.dropped, _MOST),
            rejected=min(self.rejected, _MOST),
            in_flight=min(self.in_flight, _MOST),
            balanced=self.balanced,
        )


def audit_run(report: RunReport, decided: Decided) -> Audit:
    """Audits one run.

    ``decided`` may be newer than ``report``, never older: then a chunk that the report calls
    spooled and the learner has decided on counts once, as decided; and chunks made after the
    report do not count yet. So the law holds at every moment, and a chunk that the device deleted
    although the learner never decided on it breaks it.
    """
    made = Ranges.upto(report.produced)
    settled = decided.settled
    dropped = report.dropped.difference(settled)
    expired = report.expired.difference(settled).difference(dropped)
    in_flight = report.spooled.difference(settled).difference(dropped).difference(expired)
    return Audit(
        produced=report.produced,
        trained=decided.trained.intersection(made).count(),
        expired=decided.expired.intersection(made).count() + expired.count(),
        dropped=dropped.count(),
        rejected=decided.rejected.intersection(made).count(),
        in_flight=in_flight.count(),
    )
