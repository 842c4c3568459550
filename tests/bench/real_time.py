"""CartPole on a clock: a step takes as long as it would with something that moves."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class RealTimeCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose every step lasts `step_ms`, without using the processor meanwhile.

    env = RealTimeCartPole(step_ms=2.0)
    """

    def __init__(self, step_ms: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self._step_s = step_ms / 1000

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """One step; it returns when its time is over."""
        until_s = time.monotonic() + self._step_s
        result = self.env.step(action)
        time.sleep(max(0.0, until_s - time.monotonic()))
        return result
