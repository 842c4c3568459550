from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_learner.training.source import Backlog
from cloud_learner.uplink.admission import KnownVersion, KnownVersions
from cloud_learner.uplink.appetite import (
    BEHIND_STEPS,
    LOWEST_STEPS_PER_S,
    Reading,
    shares,
    wanted_steps_per_s,
)

STEP = 2048.0
TICK_S = 0.05
STEPS_S = st.integers(2, 60).map(lambda ticks: ticks * TICK_S)
RATES = st.dictionaries(
    st.integers(0, 50).map(lambda n: f"pi-{n}"), st.floats(0.0, 1e5), min_size=1, max_size=30
)


def reading(at_s: float, *, steps_waiting: float, consumed: float = 0, made: int = 0) -> Reading:
    return Reading(at_s, Backlog(steps_waiting * STEP, STEP, consumed), made)


@given(st.floats(0.0, BEHIND_STEPS - 0.01), st.floats(0, 1e6), st.integers(0, 10**6))
def test_a_learner_that_keeps_up_wants_all_there_is(
    steps_waiting: float, consumed: float, made: int
) -> None:
    now = reading(5.0, steps_waiting=steps_waiting, consumed=consumed, made=made)
    assert wanted_steps_per_s(0.0, (reading(0.0, steps_waiting=0.0), now)) == 0.0


@given(
    st.floats(0.0, 1e5),
    st.floats(BEHIND_STEPS, 100.0),
    st.one_of(st.just(0.0), st.floats(1.0, 1e6)),
    st.integers(0, 10**6),
)
def test_a_learner_that_is_behind_wants_about_what_it_uses_and_never_nothing(
    before: float, steps_waiting: float, consumed: float, made: int
) -> None:
    now = reading(5.0, steps_waiting=steps_waiting, consumed=consumed, made=made)
    wanted = wanted_steps_per_s(before, (reading(0.0, steps_waiting=0.0), now))
    assert wanted >= LOWEST_STEPS_PER_S * STEP
    if consumed > 0:
        assert wanted <= max(LOWEST_STEPS_PER_S * STEP, consumed / 5.0)


@dataclass
class SlowLearner:
    """A learner that takes `step_s` for a step, and devices that make `rate` unless told less."""

    step_s: float
    rate: float
    waiting: float = 0.0
    consumed: float = 0.0
    made: float = 0.0
    wanted: float = 0.0
    busy_until_s: float = 0.0
    highest: float = 0.0
    readings: list[Reading] = field(default_factory=list)

    def run(self, until_s: float, rng: random.Random) -> None:
        now_s, tick_s = 0.0, TICK_S
        while now_s < until_s:
            now_s += tick_s
            rate = min(self.rate, self.wanted) if self.wanted else self.rate
            more = rate * tick_s * rng.uniform(0.5, 1.5)
            self.waiting, self.made = self.waiting + more, self.made + more
            if now_s >= self.busy_until_s and self.waiting >= STEP:
                self.waiting, self.consumed = self.waiting - STEP, self.consumed + STEP
                self.busy_until_s = now_s + self.step_s - tick_s / 2
            if round(now_s / tick_s) % 5 == 0:
                backlog = Backlog(self.waiting, STEP, self.consumed)
                self.readings.append(Reading(now_s, backlog, int(self.made)))
                self.wanted = wanted_steps_per_s(self.wanted, self.readings[-20:])
            if now_s > until_s / 2:
                self.highest = max(self.highest, self.waiting / STEP)


@settings(max_examples=30, deadline=None)
@given(STEPS_S, st.floats(1.5, 20.0), st.integers(0, 1000))
def test_a_slow_learner_is_kept_busy_and_little_ever_waits(
    step_s: float, excess: float, seed: int
) -> None:
    capacity = STEP / step_s
    learner = SlowLearner(step_s, rate=capacity * excess)
    learner.run(120.0, random.Random(seed))
    assert learner.consumed >= 0.75 * capacity * 120.0
    assert learner.highest <= 8.0


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 3.0), st.floats(0.1, 0.7), st.integers(0, 1000))
def test_a_limit_goes_once_it_holds_nobody_back(step_s: float, part: float, seed: int) -> None:
    capacity = STEP / step_s
    learner = SlowLearner(step_s, rate=capacity * part, waiting=10 * STEP)
    learner.run(200.0, random.Random(seed))
    assert learner.wanted == 0.0 or learner.wanted >= learner.rate


@given(st.floats(1.0, 1e6), RATES)
def test_everybody_is_wanted_something_and_the_slow_leave_what_they_cannot_make(
    total: float, rates: dict[str, float]
) -> None:
    given = shares(total, rates)
    assert set(given) == set(rates)
    equal = total / len(rates)
    assert all(share >= equal * (1 - 1e-9) for share in given.values())
    usable = sum(min(given[device], rates[device] / 0.8) for device in rates)
    assert usable <= total * 1.25 + 1e-6


def test_a_slow_device_leaves_the_rest_of_its_share_to_the_others() -> None:
    assert shares(300.0, {"slow": 10.0, "a": 500.0, "b": 500.0}) == {
        "slow": 100.0,
        "a": 145.0,
        "b": 145.0,
    }


def test_without_a_limit_nobody_is_held_back() -> None:
    assert shares(0.0, {"a": 5.0, "b": 9.0}) == {"a": 0.0, "b": 0.0}
    assert shares(100.0, {}) == {}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(-5, 900))
def test_the_oldest_useful_version_is_the_first_within_the_bound(
    steps: list[int], lowest: int
) -> None:
    versions = KnownVersions(lambda _: None, highest=0)
    updates = [sum(steps[: n + 1]) for n in range(len(steps))]
    for n in sorted(range(len(steps)), reverse=True):  # the log lists the newest first
        versions.add(n + 1, KnownVersion(updates[n], None))
    found = versions.oldest_within(lowest)
    useful = [n + 1 for n, each in enumerate(updates) if each >= lowest]
    if len(useful) == len(updates):
        assert found == 0  # those that are forgotten may be within it as well
    else:
        assert found == (min(useful) if useful else versions.highest)


def test_the_newest_version_is_of_use_however_far_training_went() -> None:
    versions = KnownVersions(lambda _: None, highest=0)
    versions.add(4, KnownVersion(10, None))
    assert versions.oldest_within(1000) == 4
    assert versions.oldest_within(-(1 << 62)) == 0
    assert pytest.approx(versions.oldest_within(10)) == 0
