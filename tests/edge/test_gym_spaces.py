"""Actions of every space reach the environment as its own, and only there rounded and clipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edge.worlds import any_space, flat, starts
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.environments.gym_spaces import converter, to_space
from shoal.layout import ActionLayout
from shoal.spaces import Dict, Discrete, MultiBinary, Tuple, parts


@given(any_space(), st.integers(1, 3))
def test_any_action_reaches_the_environment_as_one_of_its_space_and_with_its_values(
    space: spaces.Space[Any], envs: int
) -> None:
    layout = ActionLayout.of(to_space(space))
    space.seed(0)
    samples = [space.sample() for _ in range(envs)]
    numbers = np.stack(
        [
            np.concatenate(
                [
                    (leaf - start).reshape(-1)
                    for leaf, start in zip(flat(sample), starts(space), strict=True)
                ]
            )
            for sample in samples
        ]
    )
    actions = numbers.astype(layout.dtype).reshape(envs, *layout.shape)
    before = actions.copy()
    for action, sample in zip(converter(space)(actions), samples, strict=True):
        assert space.contains(action)
        if isinstance(sample, dict | tuple):
            assert type(action) is type(sample)
        for got, want in zip(flat(action), flat(sample), strict=True):
            # Numbers travel as float32.
            wanted = want.astype(np.float32).astype(want.dtype) if want.dtype.kind == "f" else want
            assert got.shape == want.shape
            assert np.array_equal(got, wanted)
    assert np.array_equal(actions, before)


def test_what_an_environment_is_given_is_its_own_to_change() -> None:
    nested = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.MultiBinary(2)})
    actions = np.zeros((2, 4), np.float32)
    (first, second) = converter(nested)(actions)
    first["a"][:] = 9  # type: ignore[index]
    first["b"][:] = 1  # type: ignore[index]
    assert not actions.any()
    assert not second["a"].any()  # type: ignore[index]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "raw", "taken"),
    [
        ("i4", 0, 9, [-3.2, 2.4, 2.6, 99], [0, 2, 3, 9]),
        ("u1", 0, 255, [-1, 0.5, 254.6, 1e9], [0, 0, 255, 255]),
        ("i8", -(2**63), 2**63 - 1, [-1e30, 1.0, 2.5, 1e30], [-(2**63), 1, 2, 2**63 - 1024]),
        ("f2", -np.inf, np.inf, [-1e30, 0.5, 1.5, 1e30], [-65504, 0.5, 1.5, 65504]),
        ("f8", -np.inf, np.inf, [-1e30, 0.5, 1.5, 7], [np.float32(-1e30), 0.5, 1.5, 7]),
        ("f8", -1, 1, [-7, 0.5, -0.5, 7], [-1, 0.5, -0.5, 1]),
    ],
)
def test_numbers_of_a_box_are_rounded_and_clipped_to_its_dtype_and_bounds(
    dtype: str, low: float, high: float, raw: list[float], taken: list[float]
) -> None:
    space = spaces.Box(low, high, (4,), np.dtype(dtype))
    (action,) = converter(space)(np.array([raw], np.float32))
    assert isinstance(action, np.ndarray)
    assert action.dtype == dtype
    assert action.tolist() == taken
    assert space.contains(action)


def test_keys_are_sorted_however_the_environment_orders_them() -> None:
    from collections import OrderedDict

    space = spaces.Dict(OrderedDict([("b", spaces.Discrete(2)), ("a", spaces.MultiBinary(3))]))
    found = to_space(space)
    assert isinstance(found, Dict)
    assert [key for key, _ in found.items] == ["a", "b"]
    (action,) = converter(space)(np.array([[0, 1, 0, 1]]))
    assert space.contains(action)
    assert action["b"] == 1  # type: ignore[index]


def test_a_nested_space_keeps_its_structure() -> None:
    space = spaces.Tuple(
        (spaces.Discrete(3, start=2), spaces.Dict({"x": spaces.MultiBinary([2, 2])}))
    )
    found = to_space(space)
    assert isinstance(found, Tuple)
    assert [(part.path, part.space) for part in parts(found)] == [
        ("0", Discrete(3, 2)),
        ("1.x", MultiBinary((2, 2))),
    ]
