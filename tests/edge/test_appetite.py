"""The appetite: only the newest word counts, it lapses, and holding back never means standing."""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.uplink.appetite import Appetite, Pacer, Wanted, due_s
from shoal.errors import WireError
from shoal.v1 import device_pb2 as pb

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16
LAPSE_S = 10.0
T = 64


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


class Impatient(Appetite):
    """Time passes while somebody waits for news."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lapse_s=LAPSE_S, clock=clock)
        self.clock = clock

    def wait(self, timeout_s: float) -> None:
        self.clock.now_s += timeout_s


def wanted(seq: int, rate: float = 0.0, *, oldest: int = 0, run: bytes = ONE) -> Wanted:
    return Wanted(run, seq, oldest, rate)


def test_only_what_was_said_last_counts_however_it_arrives() -> None:
    appetite = Appetite(lapse_s=LAPSE_S, clock=Clock())
    assert appetite.note(wanted(2, 50.0, oldest=7))
    assert not appetite.note(wanted(1, 9.0, oldest=3))
    assert not appetite.note(wanted(2, 9.0, oldest=3))
    assert (appetite.oldest_version, appetite.steps_per_s) == (7, 50.0)


def test_a_learner_that_started_anew_counts_anew_and_the_one_before_is_heard_no_more() -> None:
    appetite = Appetite(lapse_s=LAPSE_S, clock=Clock())
    appetite.note(wanted(9, oldest=9))
    assert appetite.note(wanted(1, oldest=4, run=TWO))
    assert not appetite.note(wanted(10, oldest=9))
    assert appetite.oldest_version == 4


def test_what_a_silent_learner_wanted_lapses() -> None:
    clock = Clock()
    appetite = Appetite(lapse_s=LAPSE_S, clock=clock)
    appetite.note(wanted(1, 50.0, oldest=7))
    clock.now_s += LAPSE_S - 0.1
    assert (appetite.oldest_version, appetite.steps_per_s) == (7, 50.0)
    clock.now_s += 0.1
    assert (appetite.oldest_version, appetite.steps_per_s) == (0, 0.0)


def test_a_device_that_heeds_no_appetite_acts_and_keeps_as_before() -> None:
    appetite = Appetite(lapse_s=0.0, clock=Clock())
    appetite.note(wanted(1, 50.0, oldest=7))
    assert (appetite.oldest_version, appetite.steps_per_s) == (0, 0.0)


@pytest.mark.parametrize(
    "message",
    [
        pb.Appetite(learner_run_id=b"short"),
        pb.Appetite(learner_run_id=ONE, steps_per_s=math.nan),
        pb.Appetite(learner_run_id=ONE, steps_per_s=math.inf),
        pb.Appetite(learner_run_id=ONE, steps_per_s=-1.0),
        pb.Appetite(learner_run_id=ONE, oldest_version=2**63),
    ],
)
def test_values_that_make_no_sense_are_refused(message: pb.Appetite) -> None:
    with pytest.raises(WireError, match="appetite"):
        Wanted.from_pb(message)


@given(
    st.lists(st.floats(0.0, 0.5), min_size=2, max_size=60),
    st.floats(200.0, 10_000.0),
)
def test_never_more_than_is_wanted_whatever_a_chunk_takes(took_s: list[float], rate: float) -> None:
    clock = Clock()
    appetite = Impatient(clock)
    pacer, stop = Pacer(appetite, clock=clock), threading.Event()
    began_s = clock.now_s
    for n, chunk_s in enumerate(took_s):
        appetite.note(wanted(n + 1, rate))
        clock.now_s += chunk_s
        pacer.wait(T, stop)
        made = (n + 1) * T
        # One chunk that comes late is made up for, no more.
        assert made <= rate * (clock.now_s - began_s) + 2 * T + 1e-6


def test_delays_do_not_add_up() -> None:
    clock = Clock()
    appetite = Impatient(clock)
    pacer, stop = Pacer(appetite, clock=clock), threading.Event()
    appetite.note(wanted(1, 640.0))
    pacer.wait(T, stop)
    ends_s = []
    for n in range(50):
        appetite.note(wanted(n + 2, 640.0))
        clock.now_s += 0.03 if n % 2 else 0.09  # acting is faster than is wanted, and uneven
        pacer.wait(T, stop)
        ends_s.append(clock.now_s)
    steps_s = [after - before for before, after in itertools.pairwise(ends_s)]
    assert steps_s == pytest.approx([0.1] * 49)


@given(st.floats(-1e3, 1e6), st.floats(0, 1e6), st.floats(1e-6, 1e3))
def test_a_deadline_lies_no_more_than_one_period_after_the_later_of_both(
    before_s: float, made_s: float, period_s: float
) -> None:
    due = due_s(before_s, made_s, period_s)
    assert due >= made_s - 1e-6
    assert due <= max(before_s, made_s) + period_s + 1e-6


def test_a_learner_that_falls_silent_lets_go_of_who_waits() -> None:
    clock = Clock()
    appetite = Impatient(clock)
    pacer = Pacer(appetite, clock=clock)
    appetite.note(wanted(1, 0.001))  # one chunk takes most of a day
    pacer.wait(T, threading.Event())
    assert clock.now_s - 100.0 == pytest.approx(LAPSE_S, abs=1.0)


def test_a_stop_or_a_higher_rate_ends_the_wait() -> None:
    appetite = Appetite(lapse_s=60.0)
    appetite.note(wanted(1, 0.001))
    for end in ("stop", "rate"):
        stop = threading.Event()
        waiting = threading.Thread(target=Pacer(appetite).wait, args=(T, stop))
        waiting.start()
        if end == "stop":
            stop.set()
        else:
            appetite.note(wanted(2, 0.0))
        waiting.join(30.0)
        assert not waiting.is_alive()
