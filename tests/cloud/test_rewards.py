from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.algorithms.rewards import RewardScale


def test_without_normalization_it_is_the_fixed_factor() -> None:
    scale = RewardScale(0.9, fixed=0.1, normalize=False)
    scale.observe(np.full((4, 2), 100.0, np.float32), np.zeros((4, 2), np.bool_))
    assert scale.factor == 0.1


@given(st.integers(0, 1000), st.integers(1, 4))
def test_the_deviation_is_that_of_a_plain_loop(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    scale = RewardScale(0.9, fixed=1.0, normalize=True)
    sums: list[float] = []
    for _ in range(parts):
        rewards = rng.normal(size=(5, 2)).astype(np.float32)
        ended = rng.random((5, 2)) < 0.3
        first = float(np.mean(sums)) if sums else 0.0
        for lane in range(2):
            running = first
            for t in range(5):
                running = 0.9 * running + float(rewards[t, lane])
                sums.append(running)
                running = 0.0 if ended[t, lane] else running
        scale.observe(rewards, ended)
    assert scale.factor == pytest.approx(1.0 / np.std(sums), rel=1e-5)


def test_scaled_returns_have_the_same_size_whatever_the_rewards_are() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(500, 4)).astype(np.float32)
    ended = np.zeros((500, 4), np.bool_)
    factors = []
    for size in (1.0, 1000.0):
        scale = RewardScale(0.99, fixed=1.0, normalize=True)
        scale.observe(size * rewards, ended)
        factors.append(size * scale.factor)
    assert factors[0] == pytest.approx(factors[1], rel=1e-4)


def test_rewards_that_never_differ_do_not_blow_up() -> None:
    scale = RewardScale(0.0, fixed=1.0, normalize=True)
    scale.observe(np.zeros((8, 2), np.float32), np.zeros((8, 2), np.bool_))
    assert scale.factor <= 1e4


def test_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (RewardScale(0.9, fixed=2.0, normalize=True) for _ in range(2))
    ended = np.zeros((5, 2), np.bool_)
    ours.observe(rng.normal(size=(5, 2)).astype(np.float32), ended)
    theirs.load_state_dict(ours.state_dict())
    more = rng.normal(size=(5, 2)).astype(np.float32)
    for scale in (ours, theirs):
        scale.observe(more, ended)
    assert ours.factor == theirs.factor
