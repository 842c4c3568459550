"""The safe action of any space, in the environment's own terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edge.worlds import any_space
from gymnasium import spaces
from hypothesis import given

from edge_agent.acting.safe_action import own_terms, safe_actions
from edge_agent.environments.gym_spaces import converter, to_space
from shoal.errors import ConfigError
from shoal.layout import ActionLayout

ROVER = spaces.Dict(
    {
        "gears": spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, -1]])),
        "mode": spaces.Discrete(3, start=4),
        "lamps": spaces.MultiBinary(2),
        "steps": spaces.Box(2, 9, (1,), np.int32),
        "wheels": spaces.Box(-1, 1, (2,), np.float32),
    }
)


@given(any_space())
def test_every_space_has_a_safe_action_that_is_one_of_it(space: spaces.Space[Any]) -> None:
    ours = to_space(space)
    actions = safe_actions(ours, None, 2)
    layout = ActionLayout.of(ours)
    assert (actions.dtype, actions.shape) == (layout.dtype, (2, *layout.shape))
    assert all(space.contains(action) for action in converter(space)(actions))
    again = safe_actions(ours, own_terms(ours, actions[0]), 2)
    assert np.array_equal(again, actions)


def test_numbers_are_those_of_the_environment_leaf_after_leaf() -> None:
    ours = to_space(ROVER)
    given_numbers = [2, 1, 0, 1, 6, 3, 0.5, -0.5]
    (action,) = converter(ROVER)(safe_actions(ours, given_numbers, 1))
    assert ROVER.contains(action)
    assert {key: np.asarray(value).tolist() for key, value in action.items()} == {  # type: ignore[attr-defined]
        "gears": [[2, 1]],
        "lamps": [0, 1],
        "mode": 6,
        "steps": [3],
        "wheels": [0.5, -0.5],
    }
    assert own_terms(ours, safe_actions(ours, given_numbers, 1)[0]) == given_numbers


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 3, r"of gears is \[3, 1\]: give whole numbers between \[1, -1\] and \[2, 1\]"),
        (1, 0.5, "of gears"),
        (2, 2, r"of lamps is \[2, 1\]: give whole numbers between \[0, 0\] and \[1, 1\]"),
        (4, 7, r"of mode is \[7\]: give one whole number from 4 to 6"),
        (5, 2.5, "of steps .* one whole number from 2 to 9"),
        (6, 1.5, r"of wheels .*give values between \[-1, -1\] and \[1, 1\]"),
        (7, np.nan, "of wheels"),
    ],
)
def test_a_wrong_number_is_named_with_its_leaf_and_range(
    place: int, value: float, said: str
) -> None:
    numbers = [2, 1, 0, 1, 6, 3, 0.5, -0.5]
    numbers[place] = value
    with pytest.raises(ConfigError, match=f"actor.safe_action {said}"):
        safe_actions(to_space(ROVER), numbers, 1)
    with pytest.raises(ConfigError, match="has 7 values: give 8"):
        safe_actions(to_space(ROVER), numbers[:7], 1)
