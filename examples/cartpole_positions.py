"""CartPole that shows positions only: where it is going has to be remembered.

    shoal demo --env examples.cartpole_positions:CartPolePositions --network lstm

The observation is `[position, angle]`; the two velocities are left out. No single observation says
whether the pole is rising or falling, so a policy without memory stays far from the 450 that count
as solved.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

SEEN: Final = (0, 2)
"""Columns of CartPole's observation that are shown: position and angle."""
SOLVED: Final = 450.0


class CartPolePositions(gymnasium.ObservationWrapper[NDArray[np.float32], np.int64, Any]):
    """CartPole-v1 without velocities.

    >>> environment = CartPolePositions()
    >>> environment.reset(seed=0)[0].shape
    (2,)
    """

    spec = EnvSpec(
        "CartPolePositions-v0",
        entry_point=f"{__name__}:CartPolePositions",
        reward_threshold=SOLVED,
        max_episode_steps=500,
    )

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        whole = self.env.observation_space
        assert isinstance(whole, gymnasium.spaces.Box)  # noqa: S101 - CartPole's own
        seen = list(SEEN)
        self.observation_space = gymnasium.spaces.Box(
            whole.low[seen], whole.high[seen], dtype=np.float32
        )

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """What is shown of CartPole's own observation."""
        return observation[list(SEEN)]
