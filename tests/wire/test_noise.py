"""The sampling noise is addressable by run and step, and is the noise it says it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import RUN_ID, spaces

from shoal.layout import ActionLayout
from shoal.noise import noise_block
from shoal.spaces import Box, Discrete, MultiBinary, Space, Tuple, unbounded

UNIT = Box(np.full((3, 2), -1, np.float32), np.ones((3, 2), np.float32))
STEPS = st.integers(0, 9)


@given(
    st.binary(min_size=16, max_size=16), st.integers(0, 2**62), STEPS, STEPS,
    st.integers(1, 4), spaces(), st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)  # fmt: skip
def test_split_blocks_are_the_whole_block(
    run_id: bytes, first: int, head: int, tail: int, envs: int, action: Space, rho: float
) -> None:
    whole = noise_block(run_id, first, head + tail, envs, action, rho)
    parts = [
        noise_block(run_id, first, head, envs, action, rho),
        noise_block(run_id, first + head, tail, envs, action, rho),
    ]
    assert whole.shape == (head + tail, envs, ActionLayout.of(action).noise_width)
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_every_run_has_noise_of_its_own(left: bytes, right: bytes) -> None:
    first, second = (noise_block(run, 0, 4, 2, Discrete(3)) for run in (left, right))
    assert np.array_equal(first, second) == (left == right)


def test_no_two_steps_or_environments_share_noise() -> None:
    noise = noise_block(RUN_ID, 0, 200, 4, UNIT).reshape(-1)
    assert np.unique(noise).size > 0.999 * noise.size


def correlations(noise: NDArray[np.float32]) -> list[float]:
    flat = noise.reshape(noise.shape[0], -1).astype(np.float64)
    across = np.asarray(np.corrcoef(flat, rowvar=False))[np.triu_indices(flat.shape[1], 1)]
    along = [np.asarray(np.corrcoef(column[:-1], column[1:]))[0, 1] for column in flat.T]
    return [abs(float(value)) for value in (*across, *along)]


def test_normal_noise_is_standard_and_independent() -> None:
    noise = noise_block(RUN_ID, 0, 20_000, 2, UNIT)
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 1) < 0.01
    assert abs(float((noise.astype(np.float64) ** 4).mean()) - 3) < 0.1
    assert abs(float((noise < 1.0).mean()) - 0.8413) < 0.005
    assert max(correlations(noise)) < 0.04


def test_gumbel_noise_is_standard_and_independent() -> None:
    noise = noise_block(RUN_ID, 0, 20_000, 3, Discrete(4))
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.std()) - math.pi / math.sqrt(6)) < 0.02
    assert abs(float((noise < 0).mean()) - math.exp(-1)) < 0.005
    assert max(correlations(noise)) < 0.04


def test_adding_gumbel_noise_and_taking_the_largest_samples_the_softmax() -> None:
    logits = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    picks = (logits + noise_block(RUN_ID, 0, 50_000, 1, Discrete(4))[:, 0]).argmax(axis=1)
    wanted = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(picks, minlength=4) / picks.size, wanted, atol=0.01)


def test_noise_never_changes() -> None:
    gumbel = noise_block(RUN_ID, 5, 1, 1, Discrete(3)).reshape(-1)
    normal = noise_block(RUN_ID, 5, 1, 1, UNIT).reshape(-1)
    np.testing.assert_allclose(gumbel, [2.9838, -0.3217, 4.7494], atol=1e-4)
    np.testing.assert_allclose(
        normal, [-0.9191, -0.6618, -1.0129, -0.3255, -2.1367, 0.0423], atol=1e-4
    )


def test_mixed_noise_is_that_of_each_kind_in_its_own_columns() -> None:
    """The words of a column are the same whatever it is used for."""
    mixed = noise_block(RUN_ID, 5, 40, 3, Tuple((Discrete(2), unbounded((3,)), Discrete(2))))
    discrete = noise_block(RUN_ID, 5, 40, 3, MultiBinary((3, 1)))[..., :6]
    assert mixed.shape == (40, 3, 7)
    all_gumbel = noise_block(RUN_ID, 5, 40, 3, Discrete(7))
    all_normal = noise_block(RUN_ID, 5, 40, 3, unbounded((7,)))
    gumbel = [0, 1, 5, 6]
    np.testing.assert_array_equal(mixed[..., gumbel], all_gumbel[..., gumbel])
    np.testing.assert_array_equal(mixed[..., 2:5], all_normal[..., 2:5])
    np.testing.assert_array_equal(discrete, noise_block(RUN_ID, 5, 40, 3, Discrete(6)))


def autoregressive(noise: NDArray[np.float32], first: int, rho: float) -> NDArray[np.float64]:
    """What correlated noise is made of, said in another way: from independent noise."""
    found = noise.astype(np.float64)
    for t in range(1, len(found)):
        if (first + t) % 256:
            found[t] = rho * found[t - 1] + math.sqrt(1 - rho**2) * found[t]
    return found


@given(st.integers(0, 2000), st.integers(0, 3), st.floats(0, 1))
def test_correlated_noise_is_an_autoregressive_process_that_restarts(
    first: int, restarts: int, rho: float
) -> None:
    first -= first % 256
    steps = 256 * restarts + 5
    independent = noise_block(RUN_ID, first, steps, 2, UNIT)
    correlated = noise_block(RUN_ID, first, steps, 2, UNIT, rho)
    np.testing.assert_allclose(
        correlated, autoregressive(independent, first, rho), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(correlated[::256], independent[::256])


@given(st.integers(0, 2000), st.integers(0, 600), st.floats(0.01, 1))
def test_any_step_can_be_made_again_alone(first: int, offset: int, rho: float) -> None:
    block = noise_block(RUN_ID, first, offset + 1, 1, UNIT, rho)
    np.testing.assert_array_equal(block[-1:], noise_block(RUN_ID, first + offset, 1, 1, UNIT, rho))


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_correlated_noise_is_unit_normal_still_and_forgets_exponentially(rho: float) -> None:
    noise = noise_block(RUN_ID, 0, 256 * 400, 1, unbounded((2,)), rho).astype(np.float64)
    assert abs(float(noise.mean())) < 0.03
    assert abs(float(noise.std()) - 1) < 0.02
    assert abs(float((noise**4).mean()) - 3) < 0.3
    spans = noise.reshape(400, 256, 2)
    for lag in (1, 2, 5):
        along = float((spans[:, lag:] * spans[:, :-lag]).mean())
        assert abs(along - rho**lag) < 0.02
    across = float((noise[..., 0] * noise[..., 1]).mean())
    assert abs(across) < 0.03


def test_discrete_noise_is_never_correlated() -> None:
    space = Tuple((Discrete(3), unbounded((2,)), MultiBinary((2,))))
    independent = noise_block(RUN_ID, 3, 300, 2, space)
    correlated = noise_block(RUN_ID, 3, 300, 2, space, 0.9)
    gumbel = [0, 1, 2, 5, 6, 7, 8]
    np.testing.assert_array_equal(independent[..., gumbel], correlated[..., gumbel])
    assert (independent[..., 3:5] != correlated[..., 3:5]).mean() > 0.99
    for_discrete = noise_block(RUN_ID, 3, 30, 2, Discrete(3), 0.9)
    np.testing.assert_array_equal(for_discrete, noise_block(RUN_ID, 3, 30, 2, Discrete(3)))


@pytest.mark.parametrize("rho", [-0.1, 1.1, math.nan])
def test_refuses_a_correlation_out_of_its_range(rho: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        noise_block(RUN_ID, 0, 1, 1, UNIT, rho)


def test_correlated_noise_never_changes() -> None:
    noise = noise_block(RUN_ID, 257, 1, 1, UNIT, 0.5).reshape(-1)
    np.testing.assert_allclose(noise, [1.6888, 0.2041, -1.2853, -0.9519, 0.3253, 0.4447], atol=1e-4)


@pytest.mark.parametrize("run_id", [b"", b"short", bytes(17)])
def test_refuses_a_run_id_of_another_length(run_id: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        noise_block(run_id, 0, 1, 1, Discrete(2))
