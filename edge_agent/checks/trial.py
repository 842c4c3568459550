"""A trial of the environments before an agent acts in them: what breaks their contract, how fast.

The control loop checks little, as each check costs every step; a trial looks at everything once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gym

from edge_agent.environments.env import Copy, EnvironmentFault, one_line
from edge_agent.environments.rows import Misfit, Rows, flat
from shoal.layout import ObservationLayout
from shoal.spaces import Box, Space
from shoal.tensors import Array
from shoal.validation import MAX_REWARD

TRIAL_STEPS = 64
TRIAL_S = 10.0
"""A slow environment is stepped no longer than this."""
LEAST_STEPS = 8
"""However slow it is, it is stepped this often."""
_RESET_VALUES, _STEP_VALUES = 2, 5


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial saw.

    Attributes:
        steps: how often every copy was stepped.
        episodes: episodes that ended, all copies.
        step_ms: median time of one step of all copies together, resets included, no policy.
        reset_ms: the longest that one reset of one copy took.
        warnings: what an agent can live with, one line each.
    """

    steps: int
    episodes: int
    step_ms: float
    reset_ms: float
    warnings: Sequence[str]


def attempt(
    copies: Sequence[Copy],
    space: Space,
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Steps environments with random actions of their action space.

    Args:
        copies: all alike.
        space: their observation space.
        seed: of the actions and the episodes.
        clock: monotonic, seconds.

    Raises:
        EnvironmentFault: one raised, or gave something no agent can use.
    """
    judge = _Judge(space, Rows(space, 1), ObservationLayout.of(space), clock)
    for n, copy in enumerate(copies):
        copy.action_space.seed(seed + n)
        judge.reset(copy, seed + n)
    times_s: list[float] = []
    episodes = 0
    first_s = clock()
    for step in range(TRIAL_STEPS):
        actions = [sample(copy) for copy in copies]
        begun_s = clock()
        took_s = 0.0
        for copy, action in zip(copies, actions, strict=True):
            since_s = clock()
            given = call("step", copy.step, action)
            took_s += clock() - since_s
            if judge.step(given):
                episodes += 1
                took_s += judge.reset(copy, None)
        times_s.append(took_s)
        if step + 1 >= LEAST_STEPS and begun_s + took_s - first_s > TRIAL_S:
            break
    if not episodes:
        judge.reset(copies[0], None)
    step_ms, reset_ms = statistics.median(times_s) * 1e3, judge.reset_s * 1e3
    return Trial(len(times_s), episodes, step_ms, reset_ms, judge.warnings())


def sample(copy: Copy) -> object:
    """An action as the control loop would hand it over."""
    return _handed(copy.action_space, copy.action_space.sample())


def _handed(space: object, action: Any) -> object:  # noqa: ANN401 - of that space
    match space:
        case gym.Discrete():
            return int(action)
        case gym.Box():
            return np.asarray(action)
        case gym.Dict():
            return {key: _handed(item, action[key]) for key, item in space.spaces.items()}
        case gym.Tuple():
            return tuple(_handed(*pair) for pair in zip(space.spaces, action, strict=True))
    return cast("object", action)


def call(what: str, function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Calls an environment; whatever it raises is a fault of its own."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise EnvironmentFault(
            f"it raised {type(error).__name__} in {what}: {one_line(error)}"
        ) from error


@dataclass(slots=True)
class _Judge:
    """Looks at what environments return; collects the kinds of what is odd, and how often."""

    space: Space
    rows: Rows
    layout: ObservationLayout
    clock: Callable[[], float]
    reset_s: float = 0.0
    odd: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def warnings(self) -> Sequence[str]:
        return [f"{said} ({self.counts[kind]} times)" for kind, said in self.odd.items()]

    def reset(self, copy: Copy, seed: int | None) -> float:
        """How long it took, in seconds."""
        since_s = self.clock()
        given = call("reset", copy.reset, seed=seed)
        took_s = self.clock() - since_s
        self.reset_s = max(self.reset_s, took_s)
        if not isinstance(given, tuple) or len(given) != _RESET_VALUES:
            raise EnvironmentFault(
                f"reset gave {_describe(given)}: it must return (observation, info)"
            )
        self._observation("reset", given[0])
        self._info("reset", given[1])
        return took_s

    def step(self, given: object) -> bool:
        """Whether the episode ended."""
        if not isinstance(given, tuple) or len(given) != _STEP_VALUES:
            raise EnvironmentFault(
                f"step gave {_describe(given)}: it must return"
                " (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = given
        self._observation("step", observation)
        self._reward(reward)
        ended = [self._flag("terminated", terminated), self._flag("truncated", truncated)]
        self._info("step", info)
        return any(ended)

    def _observation(self, what: str, observation: object) -> None:
        try:
            with np.errstate(over="ignore"):
                self.rows.put(0, observation)
        except Misfit as error:
            raise EnvironmentFault(
                f"{what} gave an observation {error}: correct the environment"
            ) from error
        leaves = self.layout.unpack(self.rows.array)
        for place, given in zip(self.layout.fields, flat(self.space, observation), strict=True):
            if isinstance(place.space, Box):
                leaf = Leaf(place.path, np.asarray(given), leaves[place.path][0])
                self._box(what, place.space, leaf)

    def _box(self, what: str, box: Box, leaf: Leaf) -> None:
        cast = leaf.cast
        if leaf.given.dtype != box.dtype:
            have, want = (f"{a.dtype}{list(a.shape)}" for a in (leaf.given, box.low))
            self._warn(f"dtype {leaf.path}", f"{leaf.name}s are {have}, cast to {want}")
        if not np.isfinite(cast).all():
            raise EnvironmentFault(
                f"{what} gave an observation that is not finite:"
                f" {leaf.first(~np.isfinite(cast))}; no policy can act on it"
            )
        outside = (cast < box.low) | (cast > box.high)
        if outside.any():
            self._warn(
                f"bounds {leaf.path}",
                f"observations outside the space, such as {leaf.first(outside)} where it says"
                f" {box.low[outside][0]} to {box.high[outside][0]}",
            )

    def _reward(self, reward: object) -> None:
        try:
            value = np.asarray(reward, np.float64)
        except (TypeError, ValueError):
            value = np.asarray([], np.float64)
        with np.errstate(over="ignore"):
            fits = value.ndim == 0 and bool(np.isfinite(value.astype(np.float32)))
        if not fits:
            raise EnvironmentFault(
                f"step gave the reward {one_line(reward, 80)}: give a finite number"
            )
        if abs(value) > MAX_REWARD:
            self._warn(
                "reward",
                f"rewards such as {float(value):g}: a learner rejects what is over its"
                f" training.max_reward, {MAX_REWARD:g} unless it says otherwise; scale them",
            )

    def _flag(self, name: str, value: object) -> bool:
        if np.ndim(value) != 0:  # type: ignore[arg-type]
            raise EnvironmentFault(f"step gave {name} = {one_line(value, 80)}: give True or False")
        if not isinstance(value, bool | np.bool_):
            self._warn(name, f"{name} is {_describe(value)}, not a bool")
        return bool(value)

    def _info(self, what: str, info: object) -> None:
        if not isinstance(info, Mapping):
            self._warn(f"{what} info", f"the info of {what} is {_describe(info)}, not a dict")

    def _warn(self, kind: str, said: str) -> None:
        self.odd.setdefault(kind, said)
        self.counts[kind] = self.counts.get(kind, 0) + 1


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A Box in an observation.

    Attributes:
        path: where it is in the space.
        given: as the environment gave it.
        cast: in the dtype of its space.
    """

    path: str
    given: Array
    cast: Array

    @property
    def name(self) -> str:
        """What a person may call it."""
        return f"observation {self.path}" if self.path else "observation"

    def first(self, where: Array) -> str:
        """The first element of those, and its place."""
        place = [int(index) for index in np.argwhere(where)[0]]
        return f"{self.name}{place or ''} = {self.cast[tuple(place)]}"
