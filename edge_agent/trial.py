"""A trial of the environments before an agent acts in them: what breaks their contract, how fast.

The control loop checks little, as each check costs every step; a trial looks at everything once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_agent.env import Copy, EnvironmentFault, one_line
from shoal.spaces import Box
from shoal.tensors import Array

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
        warnings: what an agent can live with, one line each.
    """

    steps: int
    episodes: int
    step_ms: float
    warnings: Sequence[str]


def attempt(
    copies: Sequence[Copy],
    box: Box,
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Steps environments with random actions of their action space.

    Args:
        copies: all alike.
        box: their observation space.
        seed: of the actions and the episodes.
        clock: monotonic, seconds.

    Raises:
        EnvironmentFault: one raised, or gave something no agent can use.
    """
    judge = _Judge(box)
    for n, copy in enumerate(copies):
        copy.action_space.seed(seed + n)
        judge.reset(copy, seed + n)
    times_s: list[float] = []
    episodes = 0
    first_s = clock()
    for step in range(TRIAL_STEPS):
        actions = [_sample(copy) for copy in copies]
        begun_s = clock()
        took_s = 0.0
        for copy, action in zip(copies, actions, strict=True):
            since_s = clock()
            given = _call("step", copy.step, action)
            took_s += clock() - since_s
            if judge.step(given):
                episodes += 1
                since_s = clock()
                judge.reset(copy, None)
                took_s += clock() - since_s
        times_s.append(took_s)
        if step + 1 >= LEAST_STEPS and begun_s + took_s - first_s > TRIAL_S:
            break
    if not episodes:
        judge.reset(copies[0], None)
    return Trial(len(times_s), episodes, statistics.median(times_s) * 1e3, judge.warnings())


def _sample(copy: Copy) -> object:
    """An action as the control loop would hand it over."""
    action = copy.action_space.sample()
    return int(action) if isinstance(action, np.integer) else action


def _call(what: str, function: Callable[..., object], *args: object, **kwargs: object) -> object:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise EnvironmentFault(
            f"it raised {type(error).__name__} in {what}: {one_line(error)}"
        ) from error


@dataclass(slots=True)
class _Judge:
    """Looks at what environments return; collects the kinds of what is odd, and how often."""

    box: Box
    odd: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def warnings(self) -> Sequence[str]:
        return [f"{said} ({self.counts[kind]} times)" for kind, said in self.odd.items()]

    def reset(self, copy: Copy, seed: int | None) -> None:
        given = _call("reset", copy.reset, seed=seed)
        if not isinstance(given, tuple) or len(given) != _RESET_VALUES:
            raise EnvironmentFault(
                f"reset gave {_describe(given)}: it must return (observation, info)"
            )
        self._observation("reset", given[0])
        self._info("reset", given[1])

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
            array = np.asarray(observation)
        except ValueError as error:  # lists of unequal lengths
            raise EnvironmentFault(
                f"{what} gave an observation that is no array: {one_line(error)}"
            ) from error
        want = f"{self.box.dtype}{list(self.box.shape)}"
        have = f"{array.dtype}{list(array.shape)}"
        if array.shape != self.box.shape or not np.can_cast(
            array.dtype, self.box.dtype, "same_kind"
        ):
            raise EnvironmentFault(
                f"{what} gave an observation {have}, its observation space says {want}:"
                " correct the environment"
            )
        if array.dtype != self.box.dtype:
            self._warn("dtype", f"observations are {have}, cast to {want}")
        with np.errstate(over="ignore"):
            cast = array.astype(self.box.dtype)
        if not np.isfinite(cast).all():
            raise EnvironmentFault(
                f"{what} gave an observation that is not finite:"
                f" {_first(cast, ~np.isfinite(cast))}; no policy can act on it"
            )
        outside = (cast < self.box.low) | (cast > self.box.high)
        if outside.any():
            self._warn(
                "bounds",
                f"observations outside the space, such as {_first(cast, outside)} where it says"
                f" {self.box.low[outside][0]} to {self.box.high[outside][0]}",
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


def _first(array: Array, where: Array) -> str:
    """The first element of those, and its place."""
    place = [int(index) for index in np.argwhere(where)[0]]
    return f"observation{place or ''} = {array[tuple(place)]}"
