"""What quantization is calibrated with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import NEST, OBSERVATIONS, make_case, of_kind

from cloud_learner.quantization.sample import (
    PROBE_ROWS,
    Sample,
    probe_rows,
    probe_sample,
    sample_of,
)
from cloud_learner.training.experience import Batch
from shoal.layout import ObservationLayout
from shoal.observation_statistics import ObservationStatistics
from shoal.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete


def batch_of(observations: np.ndarray, state_width: int) -> Batch:
    steps, lanes = observations.shape[0] - 1, observations.shape[1]
    flags = np.zeros((steps, lanes), np.bool_)
    starts = flags.copy()
    starts[2, 1] = True
    numbers = np.zeros((steps, lanes), np.float32)
    rng = np.random.default_rng(0)
    return Batch(
        observations=observations,
        actions=np.zeros((steps, lanes), np.int64),
        log_probs=numbers,
        rewards=numbers,
        terminated=flags,
        truncated=flags,
        final_index=np.zeros(0, np.int32),
        final_observations=observations[:0, 0],
        initial_state=rng.normal(size=(lanes, state_width)).astype(np.float32),
        starts=starts,
        lags=np.zeros(lanes, np.int64),
        positions=(),
    )


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_probes_lie_within_the_space(name: str) -> None:
    case = make_case(OBSERVATIONS[name], Discrete(2))
    sample = probe_sample(case.policy, seed=0)
    layout = ObservationLayout.of(OBSERVATIONS[name])
    assert sample.observations.shape == (PROBE_ROWS, *layout.shape)
    assert sample.observations.dtype == layout.dtype
    leaves = layout.unpack(sample.observations)
    for field in layout.fields:
        leaf = leaves[field.path]
        match field.space:
            case Box():
                assert (leaf >= field.space.low).all()
                assert (leaf <= field.space.high).all()
            case Discrete():
                assert set(leaf.tolist()) == set(range(field.space.n))
            case MultiDiscrete():
                assert (leaf.max(0) == field.space.nvec - 1).all()
            case MultiBinary():
                assert set(leaf.ravel().tolist()) == {0, 1}


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float64])
def test_numbers_that_are_known_of_are_drawn_like_them_within_the_space(dtype: type) -> None:
    box = Box(np.full((2, 2), -50, dtype), np.full((2, 2), 1000, dtype))
    layout = ObservationLayout.of(Dict((("a", Discrete(3)), ("b", box))))
    means, deviations = np.array([0.0, 900.0, -40.0, 10.0]), np.array([5.0, 200.0, 30.0, 0.0])
    seen = ObservationStatistics(100, means, 100 * deviations**2)
    rows = probe_rows(layout, np.random.default_rng(0), seen)
    assert rows.shape == (PROBE_ROWS, *layout.shape)
    numbers = layout.unpack(rows)["b"].reshape(PROBE_ROWS, 4).astype(np.float64)
    assert numbers.min() >= -50
    assert numbers.max() <= 1000
    np.testing.assert_allclose(numbers[:, 0].mean(), 0.0, atol=1.5)
    np.testing.assert_allclose(numbers[:, 0].std(), 5.0, rtol=0.2)
    np.testing.assert_array_equal(numbers[:, 3], 10.0)


def test_equal_seeds_give_equal_probes() -> None:
    policy = make_case(NEST, Discrete(2)).policy
    first, second, other = (probe_sample(policy, seed=s).observations for s in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_sample_is_all_steps_of_a_batch_but_the_bootstrap() -> None:
    case = make_case(NEST, Discrete(2))
    observations = case.sample.observations[:20].reshape(5, 4, -1)
    sample = sample_of(case.policy, batch_of(observations, 0))
    np.testing.assert_array_equal(sample.observations, observations[:-1].reshape(16, -1))
    assert sample.states.shape == (16, 0)


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_states_of_a_sample_are_those_that_the_policy_had(kind: str) -> None:
    case = make_case(NEST, Discrete(2), of_kind(kind))
    observations = case.sample.observations[:20].reshape(5, 4, -1)
    batch = batch_of(observations, case.policy.state_width)
    sample = sample_of(case.policy, batch)
    with torch.no_grad():
        unrolled = case.policy.unroll(
            torch.from_numpy(batch.observations[:-1]),
            torch.from_numpy(batch.initial_state),
            torch.from_numpy(batch.starts),
        )
    expected = unrolled.states.reshape(16, -1)
    np.testing.assert_allclose(sample.states, expected, atol=1e-6)
    assert not sample.states[2 * 4 + 1].any()
    assert sample.states[3 * 4 + 1].any()


def test_thinning_spreads_evenly_and_gives_native_byte_order() -> None:
    rows = np.arange(1000, dtype=">f4").reshape(1000, 1)
    thin = Sample(rows, np.zeros((1000, 0), np.float32)).thin(300)
    assert thin.observations[:, 0].tolist() == list(range(0, 1000, 4))
    assert thin.observations.dtype.isnative
    assert len(thin.states) == 250
    assert replace(thin).thin(300).observations.shape == (250, 1)
