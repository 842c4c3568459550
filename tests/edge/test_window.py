"""The window's rules, for any spool, any flights and any moment."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.spool.run_ledger import RunLedger
from edge_agent.uplink.window import Flight, Timing, all_due, plan, silent_since
from shoal.ranges import Ranges

RUNS = [n.to_bytes(16, "big") for n in range(3)]
TIMES = st.floats(0, 1000)
TIMINGS = st.builds(Timing, st.integers(1, 12), st.floats(0.1, 10), st.floats(10, 60))
LEDGERS = st.lists(st.sets(st.integers(0, 40)), max_size=3).map(
    lambda sets: [
        RunLedger(run_id, 41, Ranges.of(seqs)) for run_id, seqs in zip(RUNS, sets, strict=False)
    ]
)


@st.composite
def flights(draw: st.DrawFn, most: int = 12) -> tuple[Flight, ...]:
    ids = draw(
        st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 40)), unique=True, max_size=most)
    )
    return tuple(
        Flight(run_id, seq, draw(st.integers(1, 9)), draw(TIMES), draw(TIMES))
        for run_id, seq in ids
    )


def _ids(some: tuple[Flight, ...]) -> list[tuple[bytes, int]]:
    return [(flight.run_id, flight.seq) for flight in some]


def _spooled(ledger: list[RunLedger]) -> list[tuple[bytes, int]]:
    return [(run.run_id, seq) for run in ledger for seq in run.spooled]


@given(flights(), LEDGERS, TIMES, TIMINGS)
def test_only_what_the_spool_holds_flies_and_nothing_twice(
    before: tuple[Flight, ...], ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan(before, ledger, now, timing)
    ids = _ids(done.flights)
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(_spooled(ledger))
    assert set(done.send) <= set(done.flights)


@given(flights(), LEDGERS, TIMES, TIMINGS)
def test_the_window_is_full_or_the_spool_is_all_in_flight(
    before: tuple[Flight, ...], ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan(before, ledger, now, timing)
    kept = [each for each in _ids(before) if each in _spooled(ledger)]
    assert len(done.flights) == max(len(kept), min(timing.window_chunks, len(_spooled(ledger))))


@given(LEDGERS, TIMES, TIMINGS)
def test_an_empty_window_takes_the_oldest_first(
    ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan((), ledger, now, timing)
    assert _ids(done.send) == _spooled(ledger)[: timing.window_chunks]


@given(flights(), LEDGERS, TIMES, TIMINGS)
def test_what_is_due_is_sent_again_and_what_is_not_waits(
    before: tuple[Flight, ...], ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan(before, ledger, now, timing)
    held = set(_spooled(ledger))
    for flight in before:
        name = (flight.run_id, flight.seq)
        again = [each for each in done.send if (each.run_id, each.seq) == name]
        assert bool(again) == (name in held and flight.due_s <= now)
        for each in again:
            assert each.attempts == flight.attempts + 1
            assert each.since_s == flight.since_s
    assert all(flight.due_s > now for flight in done.flights)
    assert done.wake_s == min((flight.due_s for flight in done.flights), default=math.inf)


@given(flights(), LEDGERS, TIMES, TIMINGS)
def test_planning_again_at_once_sends_nothing(
    before: tuple[Flight, ...], ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan(before, ledger, now, timing)
    again = plan(done.flights, ledger, now, timing)
    assert again.send == ()
    assert again.flights == done.flights


@given(flights(), LEDGERS, TIMES, TIMINGS)
def test_after_a_reconnection_all_that_is_held_is_sent_again(
    before: tuple[Flight, ...], ledger: list[RunLedger], now: float, timing: Timing
) -> None:
    done = plan(all_due(before, now), ledger, now, timing)
    assert {each for each in _ids(before) if each in _spooled(ledger)} <= set(_ids(done.send))


@given(TIMINGS, st.integers(1, 200))
def test_waits_grow_up_to_their_bound(timing: Timing, attempts: int) -> None:
    assert timing.wait_s(attempts) <= timing.wait_s(attempts + 1) <= timing.longest_s
    assert timing.wait_s(1) == timing.ack_timeout_s


@given(flights(), st.none() | TIMES)
def test_a_learner_that_owes_nothing_is_never_silent(
    some: tuple[Flight, ...], last_ack: float | None
) -> None:
    since = silent_since(some, last_ack)
    if not some:
        assert since == math.inf
    else:
        assert since >= min(flight.since_s for flight in some)
        assert last_ack is None or since >= last_ack
