"""CartPole as pictures: 84 x 84 pixels in grey, the last four frames on the last axis.

    shoal demo --env examples.cartpole_pixels:CartPolePixels --network cnn

Drawn with numpy alone, in some 50 microseconds a step. Edges are blended with the background, so
that a move of a fraction of a pixel shows, and four frames tell which way everything moves.
"""

from __future__ import annotations

import math
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

SIZE: Final = 84
"""Pixels of a side."""
FRAMES: Final = 4
MAX_STEPS: Final = 500
SOLVED: Final = 475.0

_ROAD: Final = 2.4  # CartPole's own: the cart leaves the road at this position
_SCALE: Final = 36.0 / _ROAD  # pixels a unit of the road, with a margin for the cart
_AXLE: Final = 70  # the row the pole turns about; rows count from above
_POLE: Final = 56  # pixels
_CART_ROWS: Final = slice(_AXLE, _AXLE + 8)
_CART_HALF, _POLE_HALF = 6.0, 1.5  # half a width, in pixels
_CART_GREY, _POLE_GREY = 110, 255
_COLUMNS: Final = np.arange(SIZE, dtype=np.float64)
_POLE_ROWS: Final = np.arange(_AXLE - _POLE, _AXLE)[:, None]
_HEIGHTS: Final = np.arange(_POLE, 0, -1, dtype=np.float64)[:, None]  # of those rows
_AROUND: Final = np.arange(-2, 4)  # columns that a pole may touch, from the one its middle is in


class CartPolePixels(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """CartPole-v1 as `uint8 [84, 84, 4]`, the newest frame last.

    >>> environment = CartPolePixels()
    >>> environment.reset(seed=0)[0].shape
    (84, 84, 4)
    """

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, FRAMES), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    spec = EnvSpec(
        "CartPolePixels-v0",
        entry_point=f"{__name__}:CartPolePixels",
        reward_threshold=SOLVED,
        max_episode_steps=MAX_STEPS,
    )

    def __init__(self) -> None:
        self._physics: Any = CartPoleEnv()  # published without types
        self._frames = np.zeros((SIZE, SIZE), "<u4")  # one frame a byte, the newest highest
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode; all four frames show its first state."""
        state, info = self._physics.reset(seed=seed, options=options)
        self._steps = 0
        self._frames[...] = draw(float(state[0]), float(state[2])) * np.uint32(0x01010101)
        return self._observation(), info

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step of CartPole: reward 1 while the pole stands, cut short after 500."""
        state, reward, terminated, _, info = self._physics.step(action)
        self._steps += 1
        self._frames >>= np.uint32(8)
        self._frames |= draw(float(state[0]), float(state[2])) << np.uint32(24)
        truncated = self._steps >= MAX_STEPS
        return self._observation(), float(reward), terminated, truncated, info

    def close(self) -> None:
        """Nothing was opened but CartPole itself."""
        self._physics.close()

    def _observation(self) -> NDArray[np.uint8]:
        return self._frames.copy().view(np.uint8).reshape(SIZE, SIZE, FRAMES)


def draw(position: float, angle: float) -> NDArray[np.uint32]:
    """One frame: a cart on its road, and its pole.

    Args:
        position: Of the cart, from -2.4 to 2.4.
        angle: Of the pole from upright, in radians; positive leans right.

    Returns:
        uint32 `[84, 84]`, each from 0 (background) to 255.
    """
    frame = np.zeros((SIZE, SIZE), np.uint32)
    centre = SIZE / 2 - 0.5 + position * _SCALE
    frame[_CART_ROWS] = _cover(_COLUMNS - centre, _CART_HALF) * _CART_GREY
    # The pole's rows are those of an upright one: within the 12 degrees that an episode allows it
    # is shorter by 2 % at most.
    middles = np.clip(centre + math.tan(angle) * _HEIGHTS, 3.0, SIZE - 4.0)
    columns = middles.astype(np.intp) + _AROUND
    frame[_POLE_ROWS, columns] = _cover(columns - middles, _POLE_HALF) * _POLE_GREY
    return frame


def _cover(distance: NDArray[np.float64], half: float) -> NDArray[np.float64]:
    """How much of each pixel a bar covers, 0 to 1, by the distance of the pixel from its middle."""
    return np.minimum(np.maximum(half + 0.5 - np.abs(distance), 0.0), 1.0)
