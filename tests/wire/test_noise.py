"""The sampling noise is addressable by run and step, and is the noise it says it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import RUN_ID, spaces

from shoal.noise import noise_block
from shoal.spaces import Box, Discrete, Space, width

UNIT = Box(np.full((3, 2), -1, np.float32), np.ones((3, 2), np.float32))
STEPS = st.integers(0, 9)


@given(
    st.binary(min_size=16, max_size=16), st.integers(0, 2**62), STEPS, STEPS,
    st.integers(1, 4), spaces(),
)  # fmt: skip
def test_split_blocks_are_the_whole_block(
    run_id: bytes, first: int, head: int, tail: int, envs: int, action: Space
) -> None:
    whole = noise_block(run_id, first, head + tail, envs, action)
    parts = [
        noise_block(run_id, first, head, envs, action),
        noise_block(run_id, first + head, tail, envs, action),
    ]
    assert whole.shape == (head + tail, envs, width(action))
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


@pytest.mark.parametrize("run_id", [b"", b"short", bytes(17)])
def test_refuses_a_run_id_of_another_length(run_id: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        noise_block(run_id, 0, 1, 1, Discrete(2))
