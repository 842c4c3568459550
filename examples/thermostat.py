"""An environment of your own: heat a room to 21 degrees, and no further.

    shoal demo --env examples.thermostat:Thermostat --until-return -150

This is all that Shoal asks of an environment: two spaces, `reset` and `step`, as Gymnasium has
them. On a device the same class would read a sensor and switch a relay.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

TARGET, OUTSIDE, STEPS = 21.0, 5.0, 200


class Thermostat(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Actions: heating off, half, full. The reward is minus the distance from 21 degrees."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new day: the room and its heater are cold."""
        super().reset(seed=seed, options=options)
        self._room, self._heater = self.np_random.uniform(OUTSIDE, 15.0), 0.0
        self._left = STEPS
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """A minute passes: the heater follows the switch, the room follows the heater."""
        self._heater += 0.2 * (action / 2.0 - self._heater)
        self._room += 1.5 * self._heater - 0.05 * (self._room - OUTSIDE)
        self._left -= 1
        return self._observation(), -abs(self._room - TARGET), False, self._left == 0, {}

    def _observation(self) -> NDArray[np.float32]:
        scaled = np.array([(self._room - TARGET) / 20.0, self._heater], np.float32)
        return np.clip(scaled, -1.0, 1.0)
