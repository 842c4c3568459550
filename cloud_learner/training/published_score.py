"""What others have published for an environment: the figure beside ours.

All are of RL Baselines3 Zoo, `benchmark.md` at commit 0088472: the trained agent of one run, acting
deterministically for 150,000 steps; the zoo itself says that it is no quantitative benchmark. Its
Lunar Landers are of version 2; version 3 differs in how wind and turbulence are drawn, which both
leave off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

SOURCE: Final = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"


@dataclass(frozen=True, slots=True)
class Score:
    """A published score.

    Attributes:
        algorithm: By which algorithm.
        mean: Mean return.
        std: Standard deviation over the episodes.
        env_steps: Trained for.
    """

    algorithm: str
    mean: float
    std: float
    env_steps: int

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.mean:g} +- {self.std:g} by {self.algorithm} after {self.env_steps:,} steps "
            "(RL Baselines3 Zoo, one run)"
        )


_LANDER: Final = Score("PPO", 242.119, 31.823, 1_000_000)
_LANDER_CONTINUOUS: Final = Score("SAC", 260.390, 65.467, 500_000)
_BY_ENV: Final[Mapping[str, tuple[Score, ...]]] = MappingProxyType(
    {
        "CartPole-v1": (
            Score("PPO", 500.0, 0.0, 100_000),
            Score("DQN", 500.0, 0.0, 50_000),
            Score("A2C", 500.0, 0.0, 500_000),
        ),
        "Acrobot-v1": (
            Score("PPO", -73.506, 18.201, 1_000_000),
            Score("DQN", -76.639, 11.752, 100_000),
            Score("A2C", -83.353, 17.213, 500_000),
        ),
        "Pendulum-v1": (
            Score("SAC", -156.995, 88.714, 20_000),
            Score("PPO", -172.225, 104.159, 100_000),
        ),
        "MountainCarContinuous-v0": (
            Score("SAC", 94.679, 1.134, 50_000),
            Score("PPO", 88.343, 2.572, 20_000),
        ),
        "MountainCar-v0": (
            Score("DQN", -100.849, 9.925, 120_000),
            Score("PPO", -110.423, 19.473, 1_000_000),
        ),
        "LunarLander-v3": (_LANDER, Score("DQN", 154.382, 79.241, 100_000)),
        "LunarLanderContinuous-v3": (
            _LANDER_CONTINUOUS,
            Score("PPO", 270.863, 32.072, 1_000_000),
        ),
    }
)
_KIN: Final[Mapping[str, str]] = MappingProxyType({"appo": "PPO", "impala": "A2C"})
"""Which published algorithm stands beside one of ours of another name."""


def published_score(env_id: str, algorithm: str) -> Score | None:
    """The score to put beside ours: of the same algorithm, or of the nearest kin; None: none is.

    Args:
        env_id: A gymnasium id.
        algorithm: The short name of ours, such as `appo`.
    """
    wanted = _KIN.get(algorithm, algorithm.upper())
    return next((score for score in _BY_ENV.get(env_id, ()) if score.algorithm == wanted), None)
