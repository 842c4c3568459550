"""CartPole with one number a thousand times as large: learned only if observations are normalized.

shoal demo --env large_cartpole:LargeCartPole
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

FACTORS: Final = np.array([1.0, 1000.0, 1.0, 1.0], np.float32)
"""Of position, velocity, angle and angular velocity."""
SOLVED: Final = 475.0


class LargeCartPole(gymnasium.ObservationWrapper[NDArray[np.float32], np.int64, Any]):
    """CartPole-v1 whose velocity is in millimetres a second."""

    spec = EnvSpec(
        "LargeCartPole-v0",
        entry_point=f"{__name__}:LargeCartPole",
        reward_threshold=SOLVED,
        max_episode_steps=500,
    )

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        whole = self.env.observation_space
        assert isinstance(whole, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(
            np.maximum(whole.low * FACTORS, np.finfo(np.float32).min),
            np.minimum(whole.high * FACTORS, np.finfo(np.float32).max),
            dtype=np.float32,
        )

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """CartPole's own observation, in other units."""
        return observation * FACTORS
