"""What the learner makes of rewards: a fixed scale, and one that follows their size.

Rewards are scaled here alone; devices, journal and statistics have them as the environment gave
them.
"""

from __future__ import annotations

import math
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

_SMALLEST_STD: Final = 1e-4


class RewardState(TypedDict):
    """What a checkpoint keeps."""

    count: int
    mean: float
    squares: float


class RewardScale:
    """What to multiply rewards by.

    Normalized, it is one over the standard deviation, over everything seen, of the discounted sum
    of past rewards R_t = gamma R_{t-1} + r_t, which starts anew with every episode (Engstrom et al.
    2020, "Implementation matters in deep policy gradients"). What a chunk begins in the midst of
    starts at the mean of all so far.

    >>> scale = RewardScale(0.99, fixed=1.0, normalize=True)
    >>> scale.observe(rewards, ended)    # [T, B], each chunk once
    >>> scale.factor
    """

    def __init__(self, gamma: float, *, fixed: float, normalize: bool) -> None:
        """Starts with `fixed` alone.

        Args:
            gamma: Discount a step.
            fixed: Times this, always.
            normalize: Whether to follow the rewards' size.
        """
        self._gamma = gamma
        self._fixed = fixed
        self._normalize = normalize
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    @property
    def factor(self) -> float:
        """What to multiply rewards by, now."""
        if not self._normalize or self._count <= 1:
            return self._fixed
        return self._fixed / max(math.sqrt(self._squares / self._count), _SMALLEST_STD)

    def observe(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> None:
        """Takes in rewards `[T, B]`; nothing to do unless normalized."""
        if not self._normalize:
            return
        running = np.full(rewards.shape[1], self._mean)
        sums = np.empty(rewards.shape)
        for step, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
            running = self._gamma * running + reward
            sums[step] = running
            running = np.where(end, 0.0, running)
        # Chan, Golub & LeVeque 1979: the moments of two sets give those of both.
        count, mean = sums.size, float(sums.mean())
        gap, total = mean - self._mean, self._count + count
        self._squares += float(np.square(sums - mean).sum())
        self._squares += gap * gap * self._count * count / total
        self._mean += gap * count / total
        self._count = total

    def state_dict(self) -> RewardState:
        """What it saw."""
        return RewardState(count=self._count, mean=self._mean, squares=self._squares)

    def load_state_dict(self, state: RewardState) -> None:
        """Goes on from what another saw."""
        self._count, self._mean, self._squares = state["count"], state["mean"], state["squares"]
