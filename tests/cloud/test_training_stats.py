from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk

from cloud_learner.training.stats import STALENESS_VERSIONS, Progress, TrainingStats
from shoal.episodes import Episode

CHUNK = make_chunk(cartpole_spec())


class Clock:
    """Moves when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=250))
def test_the_mean_return_is_that_of_the_last_hundred_episodes(returns: list[float]) -> None:
    stats = TrainingStats()
    for value in returns:
        stats.note_chunk(replace(CHUNK, episodes=(Episode(0, 0, value, 3),)))
    np.testing.assert_allclose(stats.return_mean, np.mean(returns[-100:]))
    assert stats.to_pb().return_window == min(100, len(returns))
    assert stats.episodes == len(returns)


def test_counts_go_on_from_what_the_journal_held() -> None:
    stats = TrainingStats(Progress(env_steps=100, episodes=7, bytes_up=50))
    stats.note_chunk(CHUNK)
    stats.note_bytes(5)
    training = stats.to_pb()
    assert (training.env_steps, training.episodes, training.bytes_up) == (108, 9, 55)


def test_lag_percentiles_are_those_of_recently_trained_columns() -> None:
    stats = TrainingStats()
    stats.note_step({"kl_staleness": 0.25}, updates=9, lags=np.arange(101))
    training = stats.to_pb()
    assert (training.lag_p50, training.lag_p99, training.lag_max) == (50.0, 99.0, 100.0)
    assert (training.updates, training.kl_staleness) == (9, 0.25)


def test_the_rate_is_of_the_last_seconds_and_falls_to_zero_when_nothing_comes() -> None:
    clock = Clock()
    stats = TrainingStats(clock=clock)
    for _ in range(40):
        clock.now_s += 1.0
        stats.note_chunk(CHUNK)
    np.testing.assert_allclose(stats.steps_per_s(), 8.0)
    clock.now_s += 1000.0
    assert stats.steps_per_s() < 0.1


def test_a_versions_staleness_is_the_mean_over_batches_that_it_alone_made() -> None:
    stats = TrainingStats()
    stats.note_staleness({3}, 0.1)
    stats.note_staleness({3}, 0.3)
    stats.note_staleness({3, 4}, 5.0)
    stats.note_staleness({4}, None)
    assert stats.staleness_of(3) == pytest.approx(0.2)
    assert stats.staleness_of(4) is None


def test_staleness_is_kept_of_the_newest_versions_only() -> None:
    stats = TrainingStats()
    for version in range(STALENESS_VERSIONS + 10):
        stats.note_staleness({version}, 0.5)
    assert stats.staleness_of(9) is None
    assert stats.staleness_of(10) == 0.5
