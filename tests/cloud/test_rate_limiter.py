"""The replay ratio: never exceeded, always reached, whatever happens in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.training.rate_limiter import RateLimiter

RATIOS = st.sampled_from([0.125, 0.5, 1.0, 3.0])
INSERTS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def test_nothing_is_learned_before_the_warm_up() -> None:
    limiter = RateLimiter(min_size=100, updates_per_transition=1.0)
    limiter.insert(100)
    assert not limiter.allows(1, size=100)
    limiter.insert(1)
    assert limiter.allows(1, size=101)


@given(RATIOS, st.integers(0, 60), INSERTS, st.integers(1, 5), st.data())
def test_updates_never_exceed_the_ratio_and_always_reach_it(
    ratio: float, min_size: int, inserts: list[int], at_once: int, data: st.DataObject
) -> None:
    limiter = RateLimiter(min_size, ratio)
    updates = inserted = 0
    for count in inserts:
        limiter.insert(count)
        inserted += count
        while limiter.allows(at_once, size=inserted):
            limiter.spend(at_once)
            updates += at_once
        budget = ratio * max(0, inserted - min_size)
        assert updates <= budget + 1e-9
        assert inserted <= min_size or updates > budget - at_once - 1e-9
        if data.draw(st.booleans()):  # a restart, at any point
            state = limiter.state_dict()
            limiter = RateLimiter(min_size, ratio)
            limiter.load_state_dict(state)


@given(RATIOS, RATIOS, st.integers(0, 60), st.integers(0, 500), st.integers(1, 5))
def test_a_resume_with_other_settings_neither_stalls_nor_bursts(
    before: float, after: float, min_size: int, inserted: int, at_once: int
) -> None:
    old = RateLimiter(min_size, before)
    old.insert(inserted)
    while old.allows(at_once, size=inserted):
        old.spend(at_once)
    limiter = RateLimiter(min_size, after)
    limiter.load_state_dict(old.state_dict())
    assert not limiter.allows(at_once, size=inserted)
    enough = int(at_once / after) + 1 + max(0, min_size - inserted)
    limiter.insert(enough)
    assert limiter.allows(at_once, size=max(min_size, inserted + enough))


def test_after_a_resume_with_a_replay_that_lost_its_past_it_waits_for_the_warm_up_again() -> None:
    limiter = RateLimiter(min_size=100, updates_per_transition=1.0)
    limiter.load_state_dict({"inserted": 5000, "credit": 0.5})
    limiter.insert(60)
    assert not limiter.allows(1, size=60)
    limiter.insert(60)
    assert limiter.allows(1, size=120)


def test_it_says_how_near_the_next_update_is() -> None:
    limiter = RateLimiter(min_size=100, updates_per_transition=0.5)
    limiter.insert(25)
    assert limiter.fill(8, size=25) == 0.25
    limiter.insert(79)
    assert limiter.fill(8, size=104) == pytest.approx(0.25)
    limiter.insert(100)
    assert limiter.fill(8, size=204) == 1.0
