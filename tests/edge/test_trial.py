"""A trial finds what breaks an environment's contract before an agent acts in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from edge.worlds import World
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.checks.trial import LEAST_STEPS, TRIAL_STEPS, attempt
from edge_agent.environments.env import EnvironmentFault
from edge_agent.environments.gym_spaces import to_space
from shoal.spaces import Box

BOX = Box(np.full(3, -1, np.float32), np.full(3, 1, np.float32))
GOOD = np.zeros(3, np.float32)


class Told(gymnasium.Env[Any, Any]):
    """Gives what it is told to: at first what is good, and after some steps what is not."""

    def __init__(
        self,
        *,
        observation: Any = GOOD,  # noqa: ANN401 - whatever somebody's environment gives
        reward: Any = 0.0,  # noqa: ANN401
        ends: Any = False,  # noqa: ANN401
        step: Any = None,  # noqa: ANN401
        reset: Any = None,  # noqa: ANN401
        after: int = 5,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = action_space or spaces.Discrete(4, start=-1)
        self.actions: list[Any] = []
        self.resets = 0
        self._bad: tuple[Any, ...] = (observation, reward, ends, False, {})
        self._step, self._reset, self._after = step, reset, after

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
        self.resets += 1
        return (GOOD, {}) if self._reset is None else self._reset

    def step(self, action: Any) -> Any:  # noqa: ANN401
        self.actions.append(action)
        if len(self.actions) <= self._after:
            return GOOD, 0.0, False, False, {}
        return self._bad if self._step is None else self._step


def test_a_good_environment_is_stepped_with_seeded_actions_of_its_space() -> None:
    first, second = Told(), Told()
    trial = attempt([first], BOX, seed=3)
    attempt([second], BOX, seed=3)
    assert trial.steps == len(first.actions) == TRIAL_STEPS
    assert trial.warnings == []
    assert first.actions == second.actions
    assert set(first.actions) == {-1, 0, 1, 2}
    assert {type(action) for action in first.actions} == {int}, "as the control loop hands it over"
    assert first.resets == 2, "the second reset is tried though no episode ended"


def test_a_box_is_acted_in_within_its_bounds() -> None:
    arm = Told(action_space=spaces.Box(-2, 3, (2,), np.float32))
    attempt([arm], BOX)
    assert all(arm.action_space.contains(action) for action in arm.actions)


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        (Told(observation=np.array([0, np.nan, 0], np.float32)), r"observation\[1\] = nan"),
        (Told(observation=np.array([0, 0, np.inf], np.float32)), r"observation\[2\] = inf"),
        (Told(observation=np.array([0, 0, 1e300])), "not finite"),
        (Told(observation=np.zeros(4, np.float32)), r"float32\[4\].*says float32\[3\]"),
        (Told(observation=np.zeros(3, np.complex64)), "complex64"),
        (Told(observation=None), "a NoneType|object"),
        (Told(observation=[[0], [0, 0]]), "no array"),
        (Told(reward=float("nan")), "reward nan: give a finite number"),
        (Told(reward=-np.inf), "reward -inf"),
        (Told(reward=None), "reward None"),
        (Told(reward="a lot"), "reward a lot"),
        (Told(reward=np.zeros(2)), "reward"),
        (Told(ends=np.array([True, False])), "terminated"),
        (Told(step=(GOOD, 0.0, False, {})), "step gave 4 values"),
        (Told(step=GOOD), "step gave a ndarray"),
        (Told(reset=GOOD), r"reset gave a ndarray: it must return \(observation, info\)"),
        (Told(reset=(GOOD, {}, 1)), "reset gave 3 values"),
        (Told(reset=(np.full(3, np.nan, np.float32), {})), "reset gave an observation.*finite"),
    ],
)
def test_what_no_agent_can_use_is_a_fault(copy: Told, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said) as caught:
        attempt([copy], BOX)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        (Told(observation=np.zeros(3)), r"float64\[3\], cast to float32\[3\] \(59 times\)"),
        (Told(observation=np.array([0, 0, 1.5], np.float32)), r"observation\[2\] = 1.5.*-1.0 to 1"),
        (Told(ends=1), "terminated is a int, not a bool"),
        (Told(step=(GOOD, 0.0, False, False, None)), "info of step is a NoneType, not a dict"),
    ],
)
def test_what_an_agent_can_live_with_is_one_warning_however_often_it_happens(
    copy: Told, said: str
) -> None:
    (warning,) = attempt([copy], BOX).warnings
    assert re.search(said, warning), warning


def test_an_environment_that_raises_says_where_and_what() -> None:
    class Jams(Told):
        def step(self, action: Any) -> Any:  # noqa: ANN401
            raise RuntimeError("motor\njammed")

    with pytest.raises(EnvironmentFault, match="raised RuntimeError in step: motor jammed"):
        attempt([Jams()], BOX)


class Slow(Told):
    """Takes time of a clock that only it moves."""

    def __init__(self, step_s: float) -> None:
        super().__init__(ends=True)
        self.now_s = 0.0
        self._step_s = step_s

    def step(self, action: Any) -> Any:  # noqa: ANN401
        self.now_s += self._step_s
        return super().step(action)


@given(step_ms=st.floats(0.01, 100), copies=st.integers(1, 4))
def test_a_step_takes_what_all_copies_take_one_after_another(step_ms: float, copies: int) -> None:
    slow = [Slow(step_ms / 1e3) for _ in range(copies)]
    trial = attempt(slow, BOX, clock=lambda: sum(each.now_s for each in slow))
    assert trial.step_ms == pytest.approx(step_ms * copies, rel=1e-6)


def test_a_very_slow_environment_is_not_stepped_for_ever() -> None:
    slow = Slow(60.0)
    assert attempt([slow], BOX, clock=lambda: slow.now_s).steps == LEAST_STEPS


def test_episodes_that_end_are_begun_anew() -> None:
    copy = Told(ends=True)
    trial = attempt([copy], BOX)
    assert trial.episodes == TRIAL_STEPS - 5
    assert copy.resets == 1 + trial.episodes


def nested(bad: Any) -> World:  # noqa: ANN401 - one leaf of an observation
    """Gives a leaf of its own instead of what it sampled, after a while."""
    space = spaces.Dict({"arm": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3)))})
    world = World(space, spaces.Tuple((spaces.Discrete(2, start=4), spaces.MultiBinary(2))))
    sampled = world._observe
    world._observe = lambda: {"arm": (bad, 0)} if len(world.taken) > 5 else sampled()  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (np.array([0, np.nan], np.float32), r"observation arm.0\[1\] = nan; no policy"),
        (np.zeros(3, np.float32), r"arm.0: float32\[3\], its observation space says float32\[2\]"),
        (None, "arm.0"),
    ],
)
def test_what_is_wrong_in_a_nested_observation_is_named_with_its_path(
    leaf: object, said: str
) -> None:
    world = nested(leaf)
    with pytest.raises(EnvironmentFault, match=said):
        attempt([world], to_space(world.observation_space))


def test_what_is_odd_in_a_nested_observation_is_named_with_its_path() -> None:
    for leaf, said in (
        (np.zeros(2), r"observation arm.0s are float64\[2\], cast to float32\[2\]"),
        (np.array([0, 2], np.float32), r"observation arm.0\[1\] = 2.0 where it says -1.0 to 1.0"),
    ):
        world = nested(leaf)
        (warning,) = attempt([world], to_space(world.observation_space)).warnings
        assert re.search(said, warning), warning


def test_a_nested_action_is_handed_over_as_the_control_loop_does() -> None:
    world = nested(np.zeros(2, np.float32))
    attempt([world], to_space(world.observation_space))
    assert {type(action[0]) for action in world.taken} == {int}


def test_a_real_environment_passes() -> None:
    make: Callable[[str], Any] = gymnasium.make
    env = make("Pendulum-v1")
    box = env.observation_space
    assert attempt([env], Box(box.low, box.high)).warnings == []
    env.close()
