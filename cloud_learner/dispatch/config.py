"""What tasks a learner hands out: frozen dataclasses, filled from `[dispatch]` and `[[tasks]]`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cloud_learner.dispatch.tasks import Limits, TaskSpec
from shoal.errors import ConfigError

MAX_TASKS: Final = 100_000
MAX_KWARGS_BYTES: Final = 16 * 1024
MAX_NAME: Final = 80
_MAX_SEED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """When tasks are taken back or given up.

    ``lease_s`` is how long one attempt may last (0: as long as its device is there), ``failures``
    how often devices may say that a task cannot be done, ``losses`` how many may be lost with it.
    """

    lease_s: float = 0.0
    failures: int = 3
    losses: int = 10

    def __post_init__(self) -> None:
        _require(self.lease_s >= 0, "lease_s", self.lease_s, "0 or more")
        _require(self.failures >= 1, "failures", self.failures, "1 or more")
        _require(self.losses >= 1, "losses", self.losses, "1 or more")

    @property
    def limits(self) -> Limits:
        """As the queue wants them."""
        return Limits(self.lease_s, self.failures, self.losses)


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """One ``[[tasks]]``: ``seeds`` tasks, each ``repeat`` times.

    A task is so many ``episodes`` or ``steps`` (transitions), whichever is reached first, of
    ``env_id`` (left out: the device's own) with ``env_kwargs``. Its seeds are ``first_seed`` and
    those after it; left out, there is one task without a seed. Tasks of a higher ``stage`` wait
    until the lower ones ended, and until the mean return of this one's reached ``pass_return``: as
    long as it does not they are handed out again.
    """

    name: str
    env_id: str = ""
    env_kwargs: dict[str, object] = field(default_factory=dict)
    first_seed: int | None = None
    seeds: int = 1
    repeat: int = 1
    episodes: int = 0
    steps: int = 0
    stage: int = 0
    pass_return: float | None = None

    def __post_init__(self) -> None:
        _require(0 < len(self.name) <= MAX_NAME, "name", self.name, f"1 to {MAX_NAME} characters")
        for key in ("seeds", "repeat"):
            _require(1 <= getattr(self, key) <= MAX_TASKS, key, getattr(self, key), "1 to 100000")
        for key in ("episodes", "steps", "stage"):
            _require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more")
        _require(
            self.episodes > 0 or self.steps > 0,
            "episodes",
            self.episodes,
            "1 or more, or say steps: a task needs an end",
        )
        if self.first_seed is not None:
            highest = _MAX_SEED - self.seeds + 1
            ok = 0 <= self.first_seed <= highest
            _require(ok, "first_seed", self.first_seed, f"0 to {highest}")
        elif self.seeds > 1:
            raise ConfigError(f"seeds = {self.seeds} without first_seed: say which the first is")
        if self.pass_return is not None:
            _require(math.isfinite(self.pass_return), "pass_return", self.pass_return, "a number")
            _require(self.episodes > 0, "episodes", self.episodes, "1 or more with pass_return")
        _require(
            len(self.kwargs_json) <= MAX_KWARGS_BYTES,
            "env_kwargs",
            f"{len(self.kwargs_json)} bytes",
            f"at most {MAX_KWARGS_BYTES} bytes as JSON",
        )

    @property
    def kwargs_json(self) -> str:
        """The keyword arguments as they travel.

        Raises:
            ConfigError: They hold what JSON cannot.
        """
        try:
            return json.dumps(self.env_kwargs, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"env_kwargs of task {self.name!r}: {error}") from error


def specs_of(tasks: Sequence[TaskConfig]) -> list[TaskSpec]:
    """Every single task, in the order of the configuration, repetition after repetition.

    Raises:
        ConfigError: Two have the same name, or there are too many.
    """
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two [[tasks]] are named {twice!r}: give each a name of its own")
    total = sum(task.seeds * task.repeat for task in tasks)
    if total > MAX_TASKS:
        raise ConfigError(f"{total} tasks: {MAX_TASKS} at most; lower seeds or repeat")
    return [
        TaskSpec(
            name=task.name,
            env_id=task.env_id,
            env_kwargs=task.kwargs_json,
            seed=None if task.first_seed is None else task.first_seed + offset,
            max_episodes=task.episodes,
            max_steps=task.steps,
            stage=task.stage,
            repetition=repetition,
            pass_return=task.pass_return,
        )
        for task in tasks
        for repetition in range(task.repeat)
        for offset in range(task.seeds)
    ]


def _require(ok: bool, key: str, value: object, allowed: str) -> None:  # noqa: FBT001 - a guard
    if not ok:
        raise ConfigError(f"{key} = {value!r} is out of range: use {allowed}")
