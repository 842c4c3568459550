"""What is done with a pushed gradient, as values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import RUN_ID

from cloud_learner.gradients.rules import WINDOW, Outcome, Seen, judge, learning_rate
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.journal.audit import RunKey
from shoal.errors import ConfigError

RUN = RunKey("pi-1", RUN_ID)
CONFIG = GradientsConfig(max_lag=10, max_norm=100.0, clip_norm=2.0, lag_scaling=0.5)


@given(st.integers(-20, 40), st.floats(0, 1e9))
def test_every_gradient_is_applied_within_the_bounds_or_refused_by_name(
    lag: int, norm: float
) -> None:
    verdict = judge(lag, norm, CONFIG)
    if not 0 <= lag <= 10:
        assert verdict.outcome is Outcome.LAG
    elif norm > 100.0:
        assert verdict.outcome is Outcome.NORM
    else:
        assert verdict.outcome is Outcome.APPLIED
        assert 0.0 < verdict.gain <= 1.0
        assert verdict.gain * norm <= 2.0 * (1 + 1e-9)
        assert verdict.rate == pytest.approx((1 + lag) ** -0.5)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_none_is_refused_as_not_finite(norm: float) -> None:
    assert judge(0, norm, CONFIG).outcome is Outcome.NON_FINITE


def test_a_gradient_without_lag_steps_all_the_way_and_no_scaling_takes_no_heed_of_it() -> None:
    assert judge(0, 1.0, CONFIG).rate == 1.0
    assert judge(9, 1.0, GradientsConfig(lag_scaling=0.0)).rate == 1.0
    assert judge(9, 1.0, GradientsConfig(lag_scaling=1.0)).rate == pytest.approx(0.1)


@given(st.lists(st.integers(0, 200), max_size=300))
def test_no_number_is_new_twice(seqs: list[int]) -> None:
    seen, new = Seen(), set[int]()
    for seq in seqs:
        highest = max(new, default=-1)
        if seen.note(RUN, seq):
            assert seq not in new
            new.add(seq)
        else:  # it came, or so long ago that nobody knows
            assert seq in new or seq <= highest - WINDOW


@given(st.permutations(range(WINDOW)))
def test_within_the_window_any_order_will_do(seqs: list[int]) -> None:
    seen = Seen()
    assert all(seen.note(RUN, seq) for seq in seqs)
    assert not any(seen.note(RUN, seq) for seq in seqs)


def test_runs_are_apart_and_the_oldest_is_forgotten_so_that_memory_is_bounded() -> None:
    seen = Seen(runs=2)
    runs = [RunKey("pi-1", bytes([n]) * 16) for n in range(3)]
    assert all(seen.note(run, 0) for run in runs)
    assert len(seen.state_dict()) == 2
    assert not seen.note(runs[2], 0)
    assert seen.note(runs[0], 0), "it was forgotten"


@given(st.lists(st.integers(0, 100), max_size=50), st.integers(0, 100))
def test_what_was_seen_survives_a_checkpoint(seqs: list[int], probe: int) -> None:
    seen, other = Seen(), Seen()
    for seq in seqs:
        seen.note(RUN, seq)
    other.load_state_dict(seen.state_dict())
    assert other.state_dict() == seen.state_dict()
    assert other.note(RUN, probe) == seen.note(RUN, probe)


def test_the_learning_rate_follows_its_schedule() -> None:
    config = GradientsConfig(learning_rate=1.0, final_learning_rate=0.5, anneal_updates=10)
    assert [learning_rate(config, n) for n in (0, 5, 10, 99)] == [1.0, 0.75, 0.5, 0.5]
    assert learning_rate(GradientsConfig(learning_rate=1.0), 99) == 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", 0),
        ("shards", 1000),
        ("learning_rate", 0.0),
        ("clip_norm", -1.0),
        ("max_norm", 0.0),
        ("max_lag", -1),
        ("lag_scaling", -0.5),
        ("momentum", 1.0),
        ("final_learning_rate", -1.0),
        ("anneal_updates", -1),
        ("max_update_bytes", 1),
    ],
)
def test_a_setting_out_of_its_range_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = .* use "):
        GradientsConfig(**{key: value})  # type: ignore[arg-type] # some are
