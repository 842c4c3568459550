"""CartPole that notes when it was first acted in: `bench.footprint_env:ProbedCartPole`."""

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class ProbedCartPole(gymnasium.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """CartPole-v1; the monotonic time of the first step, of any copy, goes to a file."""

    def __init__(self, probe: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self._probe = Path(probe)
        self._noted = self._probe.exists()

    def step(
        self,
        action: Any,  # noqa: ANN401 - as inherited
    ) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """One step."""
        if not self._noted:
            self._noted = True
            now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
            partial = self._probe.with_suffix(".new")
            partial.write_text(repr(now_s), "utf-8")
            partial.replace(self._probe)
        return self.env.step(action)
