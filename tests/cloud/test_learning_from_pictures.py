"""A policy that sees pictures is trained in integers, and published as it was trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from in_memory import InMemory
from numpy.typing import NDArray

from cloud_learner.config import NetworkConfig, TrainingConfig
from cloud_learner.quantization.quantize import Quantized

STEPS = 8
NAME = "Lamp-v0"


class Lamp(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """A lamp shines on the left or on the right of `uint8 [12, 12, 1]`; say where."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """1 for the right answer."""
        reward = float(int(action) == self._side)
        self._steps += 1
        return self._picture(), reward, self._steps == STEPS, False, {}

    def _picture(self) -> NDArray[np.uint8]:
        self._side = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (12, 12, 1), dtype=np.uint8)
        column = 6 * self._side + int(self.np_random.integers(4))
        picture[2:10, column : column + 2] += 150
        return picture


class Watched(InMemory):
    """Keeps what was published."""

    published: list[Quantized]

    def note_published(self, quantized: Quantized) -> None:
        """Keeps it."""
        self.published = [*getattr(self, "published", []), quantized]


@pytest.fixture
def lamp() -> Iterator[str]:
    """The environment, registered."""
    gymnasium.register(NAME, lambda **_: Lamp())
    yield NAME
    del registry[NAME]


@pytest.mark.parametrize("algorithm", ["appo:APPO", "dqn:DQN"])
def test_what_is_trained_in_integers_on_pictures_learns_and_is_published_in_int8(
    lamp: str, algorithm: str
) -> None:
    settings: dict[str, object] = {"learning_rate": 3e-3, "epochs": 4, "gamma": 0.5}
    if algorithm == "dqn:DQN":
        settings = {"learning_rate": 3e-3, "learning_starts": 128, "gamma": 0.5, "tau": 0.1}
        settings |= {"updates_per_transition": 0.25, "epsilon_steps": 1000, "epsilon_final": 0.02}
    fleet = Watched(
        lamp,
        TrainingConfig(
            algorithm=f"cloud_learner.algorithms.{algorithm}",
            batch_steps=128,
            settings=settings,
            network=NetworkConfig(kind="cnn", filters=4, hidden=(16,), quantization_aware=True),
        ),
        envs=4,
        window=20,
    )
    for _ in fleet.run():
        if fleet.return_mean > 0.9 * STEPS or fleet.env_steps > 20_000:
            break
    assert fleet.return_mean > 0.9 * STEPS
    assert set(fleet.precisions) == {"int8"}
    gaps = [each.kl_quantization for each in fleet.published]
    assert len(gaps) > 2
    assert max(gaps[1:]) < 1e-6  # the first was not trained
