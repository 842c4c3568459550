"""What a device tells of its observations: of each of them once, and of none that is broken."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, rover_spec

from edge_agent.gradients.observed import Observed
from shoal.layout import ObservationLayout
from shoal.observation_statistics import MAX_NUMBERS, count_numbers
from shoal.spaces import Discrete, unbounded

LAYOUT = ObservationLayout.of(cartpole_spec().observation)


@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_chunk_by_chunk_it_is_the_mean_and_variance_of_all(seed: int, steps: list[int]) -> None:
    rng, observed = np.random.default_rng(seed), Observed(LAYOUT)
    chunks = [rng.normal(5.0, 3.0, (count, 2, 4)).astype(np.float32) for count in steps]
    for chunk in chunks:
        observed.add(chunk)
    rows = np.concatenate(chunks).reshape(-1, 4).astype(np.float64)
    seen = observed.statistics
    assert seen is not None
    assert seen.count == len(rows)
    np.testing.assert_allclose(seen.mean, rows.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(seen.squares / seen.count, rows.var(0), rtol=1e-9, atol=1e-12)


def test_nothing_was_seen_at_first_and_nothing_of_what_has_no_numbers() -> None:
    assert Observed(LAYOUT).statistics is None
    discrete = Observed(ObservationLayout.of(Discrete(4)))
    discrete.add(np.zeros((3, 2), np.int64))
    assert discrete.statistics is None
    wide = Observed(ObservationLayout.of(unbounded((MAX_NUMBERS + 1,))))
    wide.add(np.zeros((1, MAX_NUMBERS + 1), np.float32))
    assert wide.statistics is None


def test_of_a_nested_space_it_tells_of_the_numbers_among_the_leaves() -> None:
    layout = ObservationLayout.of(rover_spec().observation)
    observed = Observed(layout)
    observed.add(np.zeros((3, 2, *layout.shape), np.uint8))
    seen = observed.statistics
    assert seen is not None
    assert (seen.count, len(seen.mean)) == (6, count_numbers(layout))


def test_an_observation_that_is_not_finite_or_enormous_is_left_out_and_counted() -> None:
    observed = Observed(LAYOUT)
    rows = np.ones((5, 4), np.float32)
    rows[1, 2], rows[3, 0], rows[4, 1] = np.nan, np.inf, 3e38
    observed.add(rows)
    seen = observed.statistics
    assert seen is not None
    assert (seen.count, observed.left_out) == (2, 3)
    np.testing.assert_array_equal(seen.mean, np.ones(4))
    observed.add(np.full((2, 4), np.nan, np.float32))
    assert observed.statistics is seen
