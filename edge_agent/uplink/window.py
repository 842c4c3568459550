"""Which chunks to send now, and when to look again: values in, values out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edge_agent.spool.run_ledger import NOTHING, RunLedger
from shoal.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Timing:
    """How the window works.

    Attributes:
        window_chunks: W, chunks sent and not yet acknowledged at any one time.
        ack_timeout_s: seconds after which an unacknowledged chunk is sent again.
        longest_s: that wait doubles with each resend of a chunk, up to this.
    """

    window_chunks: int
    ack_timeout_s: float
    longest_s: float

    def wait_s(self, attempts: int) -> float:
        """Seconds to wait for an acknowledgement after this many sends."""
        return min(self.longest_s, self.ack_timeout_s * 2.0 ** min(attempts - 1, 60))


@dataclass(frozen=True, slots=True)
class Flight:
    """A chunk that was sent and not yet acknowledged.

    Attributes:
        run_id: the run that made it.
        seq: its number.
        attempts: how often it was sent.
        since_s: when it was first sent over the present connection, monotonic.
        due_s: when it is to be sent again, monotonic.
    """

    run_id: bytes
    seq: int
    attempts: int
    since_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now.

    Attributes:
        flights: all that is in flight once `send` was sent; at most W.
        send: the part of them to send now, in this order.
        wake_s: when to plan again if nothing happens before; infinity: never.
    """

    flights: tuple[Flight, ...]
    send: tuple[Flight, ...]
    wake_s: float


def plan(
    flights: Sequence[Flight], ledger: Iterable[RunLedger], now_s: float, timing: Timing
) -> Plan:
    """Decides what to send.

    What the spool no longer holds leaves the window; what is overdue is sent again; then the
    oldest chunks that are not in flight fill the window.

    Args:
        flights: what is in flight so far.
        ledger: what the spool holds, oldest run first.
        now_s: monotonic.
        timing: the window.
    """
    runs = list(ledger)
    spooled = {run.run_id: run.spooled for run in runs}
    kept = [f for f in flights if spooled.get(f.run_id, NOTHING).contains(f.seq)]
    again = {
        f: replace(f, attempts=f.attempts + 1, due_s=now_s + timing.wait_s(f.attempts + 1))
        for f in kept
        if f.due_s <= now_s
    }
    fresh = [
        Flight(run_id, seq, 1, now_s, now_s + timing.wait_s(1))
        for run_id, seq in _next(runs, kept, timing.window_chunks - len(kept))
    ]
    after = (*(again.get(f, f) for f in kept), *fresh)
    return Plan(after, (*again.values(), *fresh), min((f.due_s for f in after), default=math.inf))


def _next(
    runs: Sequence[RunLedger], kept: Sequence[Flight], room: int
) -> Iterable[tuple[bytes, int]]:
    """The `room` oldest spooled chunks that are not in flight."""
    for run in runs:
        if room <= 0:
            return
        flying = Ranges.of(f.seq for f in kept if f.run_id == run.run_id)
        for seq in run.spooled.difference(flying):
            if room <= 0:
                return
            yield run.run_id, seq
            room -= 1


def all_due(flights: Sequence[Flight], now_s: float) -> tuple[Flight, ...]:
    """After a new connection, or a learner that came back: whatever is in flight may be lost."""
    return tuple(replace(f, since_s=now_s, due_s=now_s) for f in flights)


def silent_since(flights: Sequence[Flight], last_ack_s: float | None) -> float:
    """Since when the learner owes an acknowledgement, monotonic; infinity when it owes none."""
    oldest = min((f.since_s for f in flights), default=math.inf)
    return oldest if last_ack_s is None else max(oldest, last_ack_s)
