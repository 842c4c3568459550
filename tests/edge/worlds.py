"""Gymnasium spaces of every kind, and an environment of any of them that knows what it gave."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

BOX_DTYPES = ("f2", "f4", "f8", "u1", "i1", "u2", "i2", "i4", "i8")
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    """Of any dtype that travels, with bounds and without."""
    dtype, shape = np.dtype(draw(st.sampled_from(BOX_DTYPES))), draw(SHAPES)
    if dtype.kind == "f" and draw(st.booleans()):
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    low, high = draw(st.sampled_from([(0, 1), (1, 7), (0, 100)]))
    return spaces.Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    """Of up to three axes, counted from anywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    nvec = draw(hnp.arrays(np.int64, shape, elements=st.integers(1, 5)))
    start = draw(hnp.arrays(np.int64, shape, elements=st.integers(-3, 3)))
    return spaces.MultiDiscrete(
        nvec,
        start=start,
        dtype=draw(st.sampled_from([np.int64, np.int32])),  # type: ignore[arg-type] # it takes any
    )


def leaves() -> st.SearchStrategy[spaces.Space[Any]]:
    """Spaces that hold no others."""
    binary = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(spaces.MultiBinary)
    discrete = st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)
    )
    return st.one_of(discrete, boxes(), multi_discretes(), binary)


def any_space() -> st.SearchStrategy[spaces.Space[Any]]:
    """Leaves, and Dict and Tuple of them, nested."""
    keys = st.sampled_from(["arm", "camera", "zoom", "0"])
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=4,
    )


class World(gymnasium.Env[Any, Any]):
    """Gives random observations of its space and keeps them, and what it was told to do.

    An action that is not one of its space is an error, so is a step after the end.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        length: int = 3,
        truncates: bool = False,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        observation_space.seed(7)
        self.episodes: list[list[Any]] = []
        self.taken: list[Any] = []
        self._length, self._truncates = length, truncates
        self.unpicklable = lambda: None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.episodes.append([])
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        assert len(self.episodes[-1]) <= self._length, "stepped after the end"
        assert self.action_space.contains(action), f"{action} is none of {self.action_space}"
        self.taken.append(action)
        observation = self._observe()
        over = len(self.episodes[-1]) > self._length
        return observation, 1.0, over and not self._truncates, over and self._truncates, {}

    def _observe(self) -> Any:  # noqa: ANN401
        observation = self.observation_space.sample()
        self.episodes[-1].append(copy.deepcopy(observation))
        return observation


def flat(value: Any) -> list[np.ndarray[Any, Any]]:  # noqa: ANN401
    """The leaves of an observation or action, by sorted keys and by place."""
    match value:
        case dict():
            return [leaf for key in sorted(value) for leaf in flat(value[key])]
        case tuple():
            return [leaf for item in value for leaf in flat(item)]
    return [np.asarray(value)]


def starts(space: spaces.Space[Any]) -> list[Any]:
    """What each leaf is counted from, in the same order."""
    match space:
        case spaces.Dict():
            return [start for key in sorted(space.spaces) for start in starts(space.spaces[key])]
        case spaces.Tuple():
            return [start for item in space.spaces for start in starts(item)]
        case spaces.Discrete():
            return [int(space.start)]
        case spaces.MultiDiscrete():
            return [space.start.astype(np.int64)]
    return [0]
