"""Which clock is wrong, by what the kernel, the fleet and a certificate say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.checks.finding import Level
from edge_agent.doctor.clocks import Clock, judge_clock, synchronized
from edge_agent.enrollment.validity import Dates

NOW_S, DAY_S = 1_700_000_000.0, 86_400.0
DATES = Dates(NOW_S - DAY_S, NOW_S + 29 * DAY_S)


@pytest.mark.parametrize(
    ("clock", "level", "code", "says"),
    [
        (
            Clock(NOW_S, synchronized=True, skew_s=0.2),
            Level.OK,
            0,
            "within a second of the fleet's",
        ),
        (Clock(NOW_S, synchronized=True), Level.OK, 0, "the kernel says that it is synchronized"),
        (Clock(NOW_S, synchronized=None), Level.OK, 0, "does not tell"),
        (
            Clock(NOW_S, synchronized=False, skew_s=0.2),
            Level.WARN,
            0,
            "start systemd-timesyncd or chrony",
        ),
        (
            Clock(NOW_S, synchronized=True, skew_s=60.0),
            Level.WARN,
            0,
            "1 minutes behind the fleet's",
        ),
        (
            Clock(NOW_S, synchronized=True, skew_s=-3600.0),
            Level.FAULT,
            2,
            "1 hours ahead of the fleet's",
        ),
        (
            Clock(NOW_S - 2 * DAY_S, synchronized=None),
            Level.FAULT,
            2,
            "the certificate begins in 1 days",
        ),
        (
            Clock(NOW_S + 40 * DAY_S, synchronized=True, skew_s=0.0),
            Level.FAULT,
            2,
            "the certificate ended 11 days ago",
        ),
        (
            Clock(0.0, synchronized=False, skew_s=NOW_S),
            Level.FAULT,
            2,
            "behind the fleet's: set it",
        ),
    ],
)
def test_a_clock_is_judged_and_the_cure_is_said(
    clock: Clock, level: Level, code: int, says: str
) -> None:
    finding = judge_clock(clock, DATES)
    assert (finding.level, finding.exit_code) == (level, code)
    assert says in finding.detail


def test_without_a_certificate_a_far_clock_is_a_fault_still() -> None:
    assert judge_clock(Clock(NOW_S, synchronized=None, skew_s=3600.0), None).exit_code == 1
    assert judge_clock(Clock(NOW_S, synchronized=None), None).level is Level.OK


@given(
    st.builds(
        Clock,
        now_s=st.floats(0.0, 4e9),
        synchronized=st.none() | st.booleans(),
        skew_s=st.none() | st.floats(-4e9, 4e9),
    )
)
def test_every_clock_has_one_line(clock: Clock) -> None:
    finding = judge_clock(clock, DATES)
    assert finding.detail
    assert "\n" not in finding.detail


def test_the_kernel_is_asked_and_nothing_is_changed() -> None:
    assert synchronized() in (True, False, None)
