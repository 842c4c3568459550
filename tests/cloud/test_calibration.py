from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from strategies import boxes, cartpole_spec

from cloud_learner.training.calibration import PROBE_ROWS, probe_observations
from shoal.spaces import Box, Discrete, EnvSpec


@given(boxes())
def test_probes_any_space_with_finite_values_of_its_own_dtype_within_its_bounds(box: Box) -> None:
    rows = probe_observations(EnvSpec("x", box, Discrete(2)), seed=0)
    assert rows.shape == (PROBE_ROWS, *box.shape)
    assert rows.dtype == box.dtype
    assert np.isfinite(rows.astype(np.float64)).all()
    assert (rows >= box.low).all()
    assert (rows <= box.high).all()


def test_the_same_seed_probes_with_the_same_values() -> None:
    spec = cartpole_spec()
    first, second = (probe_observations(spec, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("bound", [3.4e38, np.inf])
def test_bounds_that_say_nothing_are_not_believed(bound: float) -> None:
    high = np.full(2, bound, np.float32)
    rows = probe_observations(EnvSpec("x", Box(-high, high), Discrete(2)), seed=0)
    assert np.abs(rows).max() < 10.0
