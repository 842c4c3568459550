"""Environments of one device: N gymnasium copies stepped in the control thread.

The loop is our own, so that autoreset never invents a step: an episode that ends hands over its
true last observation, and the next one's first observation takes its place in the same step.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self, TypeAlias, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from edge_agent.config import EnvConfig
from edge_agent.environments.gym_spaces import converter, to_space
from edge_agent.environments.rows import Misfit, Rows
from shoal.errors import EnvironmentFailed
from shoal.spaces import Box, EnvSpec, Space
from shoal.tensors import Array

_LINE_CHARACTERS = 300

Copy: TypeAlias = gymnasium.Env[object, object]


class EnvironmentFault(EnvironmentFailed):
    """The environment was made, and then raised or broke its contract."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """An episode that ended in a step.

    Attributes:
        env: index n of the environment.
        final_observation: its true last observation, one row of `Step.observations`.
        total_return: sum of the raw rewards over the whole episode.
        length: environment steps over the whole episode.
    """

    env: int
    final_observation: Array
    total_return: float
    length: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of all environments gave; the next step overwrites the arrays.

    Attributes:
        observations: `[N, *shape]` as their `ObservationLayout` has it: what to act on next. Where
            an episode ended this is the first observation of the next one.
        rewards: float32 `[N]`.
        terminated: bool `[N]`, the task is over: nothing follows.
        truncated: bool `[N]`, cut short: the final observation has a value.
        endings: one for each environment whose episode ended, in order of n.
    """

    observations: Array
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    endings: Sequence[Ending]


class Environments:
    """N copies of one environment.

    with make_env(EnvConfig("CartPole-v1", num_envs=8)) as environments:
        observations = environments.reset()
        step = environments.step(np.zeros(8, np.int64))
    """

    def __init__(self, env_id: str, copies: Sequence[Copy], *, seed: int | None) -> None:
        """Take over the copies; `close` closes them.

        Args:
            env_id: the id they were made from, for messages and the spec.
            copies: at least one, all alike.
            seed: seed of them all; each copy draws a stream of its own. None draws from the system.

        Raises:
            EnvironmentFailed: a space is not supported.
        """
        first = copies[0]
        registered = first.spec
        observation = _space(env_id, "observation", first.observation_space)
        self.spec = EnvSpec(
            env_id=env_id,
            observation=observation,
            action=_space(env_id, "action", first.action_space),
            reward_threshold=None if registered is None else registered.reward_threshold,
            max_episode_steps=None if registered is None else registered.max_episode_steps,
        )
        self.num_envs = len(copies)
        self._copies = list(copies)
        self._seed = seed
        self._rows = Rows(observation, self.num_envs)
        self._observations = self._rows.array
        # Of an array that goes straight into its row; what else there is, `Rows` looks at.
        self._shape = observation.shape if isinstance(observation, Box) else None
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._returns = [0.0] * self.num_envs
        self._lengths = [0] * self.num_envs
        self._ended = False
        self._uneventful = Step(
            self._observations, self._rewards, self._terminated, self._truncated, ()
        )
        self._convert = converter(first.action_space)

    @property
    def copies(self) -> Sequence[Copy]:
        """The N environments themselves."""
        return self._copies

    def __enter__(self) -> Self:
        """Hand over the environments."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every copy."""
        self.close()

    def reset(self) -> Array:
        """Begin a new episode in every environment; seeds apply to the first call only.

        Returns:
            Observations `[N, *shape]`, overwritten by the next step.

        Raises:
            EnvironmentFault: an environment raised, or its observation is not of its own space.
        """
        for n in range(self.num_envs):
            self._begin(n, _seed_of(self._seed, n))
        self._seed = None
        return self._observations

    def step(self, actions: Array) -> Step:
        """Step every environment once, and begin the next episode where one ended.

        Args:
            actions: raw actions `[N, *shape]` as their `ActionLayout` has it: int64 counted from
                0, or float32. They are rounded and clipped to the bounds here, and only here.

        Raises:
            EnvironmentFault: an environment raised, or its observation is not of its own space.
        """
        copies, observations, shape = self._copies, self._observations, self._shape
        rewards, returns, lengths = self._rewards, self._returns, self._lengths
        endings: list[Ending] = []
        if self._ended:
            self._terminated[:] = 0
            self._truncated[:] = 0
        n = 0
        try:
            for n, action in enumerate(self._convert(actions)):
                observation, reward, terminated, truncated, _ = copies[n].step(action)
                if type(observation) is np.ndarray and observation.shape == shape:
                    observations[n] = observation
                else:
                    self._put(n, observation)
                rewards[n] = reward
                returns[n] += float(reward)
                lengths[n] += 1
                if terminated or truncated:
                    self._terminated[n] = terminated
                    self._truncated[n] = truncated
                    endings.append(Ending(n, observations[n].copy(), returns[n], lengths[n]))
                    self._begin(n, None)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise self._failed("step", n, error) from error
        self._ended = bool(endings)
        if not endings:
            return self._uneventful
        return Step(observations, rewards, self._terminated, self._truncated, endings)

    def close(self) -> None:
        """Close every copy."""
        for copy in self._copies:
            copy.close()

    def _begin(self, n: int, seed: int | None) -> None:
        try:
            observation, _ = self._copies[n].reset(seed=seed)
        except Exception as error:
            raise self._failed("reset", n, error) from error
        self._put(n, observation)
        self._returns[n] = 0.0
        self._lengths[n] = 0

    def _put(self, n: int, observation: object) -> None:
        try:
            self._rows.put(n, observation)
        except Misfit as error:
            raise EnvironmentFault(
                f"{self.spec.env_id} gave an observation {error}: correct the environment"
            ) from error

    def _failed(self, what: str, n: int, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.spec.env_id} (copy {n}) raised {type(error).__name__} in {what}:"
            f" {one_line(error)}"
        )


def make_env(config: EnvConfig) -> Environments:
    """Make the environments a device steps.

    Args:
        config: names the environment by gymnasium id or as `module:attr`, `attr` being a callable
            that returns a `gymnasium.Env`.

    Raises:
        EnvironmentFailed: no such environment, its constructor raised, or a space is not supported.
    """
    copies: list[Copy] = []
    try:
        make = _factory(config.id)
        for _ in range(config.num_envs):
            copies.append(_make(make, config))  # noqa: PERF401 - those made are closed if one fails
        return Environments(config.id, copies, seed=config.seed)
    except EnvironmentFailed:
        for copy in copies:
            copy.close()
        raise


def check_found(env_id: str) -> None:
    """Looks for an environment and makes none: another process may hold its hardware.

    Raises:
        EnvironmentFailed: there is none of that name.
    """
    _factory(env_id)


def _make(make: Callable[..., object], config: EnvConfig) -> Copy:
    try:
        with warnings.catch_warnings():
            # "CartPole-v0 is out of date" is no news to print N times.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            copy = make(**config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvironmentFailed(f"{config.id} needs more packages: {one_line(error)}") from error
    except Exception as error:
        raise EnvironmentFailed(
            f"{config.id} could not be made with kwargs {config.kwargs}:"
            f" {type(error).__name__}: {one_line(error)}"
        ) from error
    if not isinstance(copy, gymnasium.Env):
        raise EnvironmentFailed(
            f"{config.id} returned a {type(copy).__name__}: it must return a gymnasium.Env"
        )
    return cast("Copy", copy)


def _factory(env_id: str) -> Callable[..., object]:
    module_name, colon, attribute = env_id.partition(":")
    if colon:
        here = str(Path.cwd())
        if here not in sys.path:  # as `python -m` has it: a user's own module lies beside them
            sys.path.insert(0, here)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise EnvironmentFailed(
                f'the module of environment "{env_id}" cannot be imported:'
                f" {type(error).__name__}: {one_line(error)}{_searched(module_name, error, here)}"
            ) from error
        found = getattr(module, attribute, None)
        if callable(found):
            return cast("Callable[..., object]", found)
        if attribute not in gymnasium.registry:
            public = [name for name in vars(module) if not name.startswith("_")]
            raise EnvironmentFailed(
                f'module {module_name} has no environment "{attribute}"'
                f"{_nearest(attribute, public)}{_folder(module)}"
            )
        env_id = attribute
    if env_id not in gymnasium.registry:
        raise EnvironmentFailed(
            f'unknown environment "{env_id}"{_nearest(env_id, list(gymnasium.registry))}:'
            " give a gymnasium id or module:attr"
        )

    def make(**kwargs: object) -> object:
        # Our own checks (spaces, shapes, dtypes) take the place of gymnasium's checker.
        constructor = cast("Callable[..., object]", gymnasium.make)
        return constructor(env_id, disable_env_checker=True, **kwargs)

    return make


def _searched(module_name: str, error: Exception, here: str) -> str:
    """Where a module was looked for, when it is the module itself that is missing."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not f"{module_name}.".startswith(f"{missing}."):
        return ""
    return f"; searched: the current directory ({here}) and the installed packages"


def _folder(module: ModuleType) -> str:
    """Says so where a folder was found in place of a module of that name."""
    if getattr(module, "__file__", None) is not None:
        return ""
    places = ", ".join(getattr(module, "__path__", ()))
    return (
        f": {places} is a folder without a module of its own; install the package in it "
        f"(pip install -e), or run this beside {module.__name__}.py"
    )


def _nearest(name: str, names: list[str]) -> str:
    by_fold = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), list(by_fold), n=1, cutoff=0.7)
    return f' (did you mean "{by_fold[near[0]]}"?)' if near else ""


def one_line(said: object, characters: int = _LINE_CHARACTERS) -> str:
    """What something says of itself, on one line, and not too long."""
    line = " ".join(str(said).split())
    return line if len(line) <= characters else f"{line[:characters]}..."


def _seed_of(seed: int | None, n: int) -> int | None:
    # A spawned stream each: seed + n would repeat the episodes of a device seeded one higher.
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=(n,)).generate_state(1, np.uint32)[0])


def _space(env_id: str, role: str, space: object) -> Space:
    try:
        return to_space(space)
    except EnvironmentFailed as error:
        raise EnvironmentFailed(
            f"{env_id} has an {role} space {one_line(space)}: {error}"
        ) from error
