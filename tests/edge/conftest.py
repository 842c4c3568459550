"""Signed policies and small environments: what the edge tests act with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from policy_publisher import Publisher

from edge_agent.environments.env import Environments


class Counting(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length whose observations say what they are.

    An observation is `[episode, t, 10 * episode + t, 0]`, in an array that is reused. Keeps every
    action it was given.
    """

    def __init__(
        self,
        length: int = 3,
        *,
        truncates: bool = False,
        reward: float = 1.0,
        action_space: gymnasium.Space[Any] | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2) if action_space is None else action_space
        self.episode = -1
        self.t = 0
        self.steps = 0
        self.closed = False
        self.seeds: list[int | None] = []
        self.taken: list[Any] = []
        self._length, self._truncates, self._reward = length, truncates, reward
        self._on_step = on_step
        self._observation: NDArray[np.float32] = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.episode += 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.t < self._length, "stepped after the end"
        if self._on_step is not None:
            self._on_step()
        self.taken.append(action)
        self.steps += 1
        self.t += 1
        over = self.t == self._length
        ends = (over and not self._truncates, over and self._truncates)
        return self._observe(), self._reward, *ends, {}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> NDArray[np.float32]:
        self._observation[:] = (self.episode, self.t, 10 * self.episode + self.t, 0)
        return self._observation


def counting(*copies: Counting) -> Environments:
    return Environments("counting", list(copies), seed=0)


@pytest.fixture
def publisher() -> Publisher:
    """A fleet's own publisher."""
    return Publisher()


@pytest.fixture
def foreign() -> Publisher:
    """Somebody else's, for the same fleet's name and spaces."""
    return Publisher()


@pytest.fixture
def make_publisher() -> type[Publisher]:
    """Publishers for other spaces."""
    return Publisher


@pytest.fixture
def make_copy() -> type[Counting]:
    """Environments whose episodes are known."""
    return Counting


@pytest.fixture
def make_environments() -> Callable[..., Environments]:
    """Those together."""
    return counting
