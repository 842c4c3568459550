from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.enrollment.validity import MAX_SKEW_S, Dates, Trouble, diagnose, length

DATES = Dates(first_s=1_000_000.0, last_s=2_000_000.0)
seconds = st.floats(min_value=0.0, max_value=4e9)


@given(st.floats(min_value=0.0, max_value=1.0, exclude_max=True), seconds, seconds)
def test_a_certificate_is_renewed_at_two_thirds_of_its_life_more_or_less(
    draw: float, first_s: float, life_s: float
) -> None:
    dates = Dates(first_s, first_s + life_s)
    renewal_s = dates.renewal_s(draw)
    assert first_s + 0.59 * life_s <= renewal_s <= first_s + 0.74 * life_s
    assert dates.holds(renewal_s)


@given(seconds, st.none() | st.floats(min_value=-MAX_SKEW_S, max_value=MAX_SKEW_S))
def test_with_a_right_clock_only_the_dates_say_what_is_wrong(
    now_s: float, skew_s: float | None
) -> None:
    found = diagnose(DATES, now_s, skew_s)
    if now_s < DATES.first_s:
        assert found.trouble is Trouble.NOT_YET_VALID
    elif now_s > DATES.last_s:
        assert found.trouble is Trouble.EXPIRED
    else:
        assert found.trouble is Trouble.NONE
    assert bool(found.message) is (found.trouble is not Trouble.NONE)


@given(
    seconds,
    st.floats(min_value=MAX_SKEW_S, exclude_min=True, max_value=1e9),
    st.sampled_from([1, -1]),
)
def test_a_clock_that_differs_from_the_servers_is_what_is_wrong_whatever_the_dates_say(
    now_s: float, skew_s: float, sign: int
) -> None:
    found = diagnose(DATES, now_s, sign * skew_s)
    assert found.trouble is Trouble.CLOCK
    assert ("behind" if sign > 0 else "ahead of") in found.message
    assert "acting and spooling go on" in found.message


@pytest.mark.parametrize(
    ("given_s", "text"),
    [
        (0.5, "less than a second"),
        (59.0, "59 seconds"),
        (7200.0, "2 hours"),
        (3 * 86_400.0, "3 days"),
    ],
)
def test_a_length_of_time_is_said_in_its_largest_unit(given_s: float, text: str) -> None:
    assert length(given_s) == text
