"""Observations of every space lie in rows as the layout says, and what is none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edge.worlds import any_space, flat, starts
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.environments.gym_spaces import to_space
from edge_agent.environments.rows import Misfit, Rows, leaf_view
from shoal.layout import ObservationLayout


@given(any_space(), st.integers(1, 3))
def test_any_observation_is_in_its_row_bit_for_bit_and_counted_from_0(
    space: spaces.Space[Any], envs: int
) -> None:
    layout = ObservationLayout.of(to_space(space))
    rows = Rows(to_space(space), envs)
    space.seed(0)
    for n in range(envs):
        observation = space.sample()
        rows.put(n, observation)
        leaves = layout.unpack(rows.array)
        for field, given_leaf, start in zip(
            layout.fields, flat(observation), starts(space), strict=True
        ):
            leaf = leaves[field.path][n]
            assert leaf.dtype == field.dtype
            assert np.array_equal(leaf, given_leaf - start)
            if given_leaf.dtype.kind in "fu":
                assert leaf.dtype == given_leaf.dtype, "nothing changes the dtype of a Box"
                assert leaf.tobytes() == given_leaf.tobytes()


@given(any_space())
def test_a_view_of_a_leaf_is_never_a_copy(space: spaces.Space[Any]) -> None:
    layout = ObservationLayout.of(to_space(space))
    rows = Rows(to_space(space), 3)
    for n in range(3):
        rows.put(n, space.sample())
    leaves = layout.unpack(rows.array)
    for field in layout.fields:
        view = leaf_view(layout, field, rows.array)
        assert np.shares_memory(view, rows.array)
        assert view.shape == leaves[field.path].shape
        assert np.array_equal(view, leaves[field.path])


ARM = spaces.Dict(
    {
        "grip": spaces.Discrete(3, start=1),
        "grid": spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, 0]])),
        "lamps": spaces.MultiBinary(2),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (2, 2), np.uint8))),
    }
)
GOOD: dict[str, Any] = {
    "grip": 3,
    "grid": np.array([[6, 2]]),
    "lamps": np.array([0, 1], np.int8),
    "pose": (np.zeros(2, np.float32), np.zeros((2, 2), np.uint8)),
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (3, "a int, its observation space says a dict of ['grid', 'grip', 'lamps', 'pose']"),
        ({"grip": 1}, "a dict of ['grip'], its observation space says a dict of"),
        (GOOD | {"more": 1}, "a dict of ['grid', 'grip', 'lamps', 'more', 'pose']"),
        (GOOD | {"grip": 0}, "grip: 0, its observation space says a whole number from 1 to 3"),
        (GOOD | {"grip": 4}, "grip: 4,"),
        (GOOD | {"grip": 1.0}, "grip: a float,"),
        (GOOD | {"grip": None}, "grip: a NoneType,"),
        (GOOD | {"grip": np.array([1])}, "grip: int64[1],"),
        (
            GOOD | {"grid": np.array([[7, 0]])},
            "grid: 7 in one place, its observation space says 5",
        ),
        (GOOD | {"grid": np.array([[6, 3]])}, "grid: 3 in one place"),
        (GOOD | {"grid": np.array([6, 2])}, "grid: int64[2], its observation space says whole"),
        (GOOD | {"grid": np.array([[6.0, 2]])}, "grid: float64[1, 2],"),
        (GOOD | {"grid": [[1], [2, 3]]}, "grid: no array"),
        (GOOD | {"lamps": np.array([0, 2])}, "lamps: 2 in one place"),
        (GOOD | {"pose": GOOD["pose"][:1]}, "pose: 1 values, its observation space says 2 values"),
        (GOOD | {"pose": None}, "pose: a NoneType"),
        (GOOD | {"pose": (np.zeros(3), GOOD["pose"][1])}, "pose.0: float64[3], its observation"),
        (GOOD | {"pose": (GOOD["pose"][0], np.zeros((2, 2)))}, "pose.1: float64[2, 2], its obs"),
    ],
)
def test_what_is_none_of_its_space_is_named_with_its_path(wrong: object, said: str) -> None:
    rows = Rows(to_space(ARM), 1)
    rows.put(0, GOOD)
    with pytest.raises(Misfit) as caught:
        rows.put(0, wrong)
    assert said in str(caught.value)
