"""The hyper-parameters that algorithms of transitions share."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.algorithms.optimiser import OptimiserSettings
from cloud_learner.config import require
from cloud_learner.training.transition_replay import Sampling


@dataclass(frozen=True, slots=True)
class TransitionSettings(OptimiserSettings):
    """Hyper-parameters of an algorithm with a target network; those of replay are `Sampling`'s.

    Attributes:
        tau: How far a target network moves at each of its moves: 1 makes it a copy.
        reward_scale: Rewards are multiplied by this, by the learner alone.
        normalize_rewards: Divides them by the running deviation of their discounted sum.
    """

    adam_eps: float = 1e-8
    gamma: float = 0.99
    tau: float = 0.005
    reward_scale: float = 1.0
    normalize_rewards: bool = False
    batch_size: int = 256
    gradient_steps: int = 1
    learning_starts: int = 1000
    updates_per_transition: float = 1.0
    n_step: int = 1
    priority_alpha: float = 0.0
    priority_beta: float = 0.4
    priority_anneal_updates: int = 100_000

    def __post_init__(self) -> None:
        OptimiserSettings.__post_init__(self)
        Sampling.of(self)
        require(0.0 < self.tau <= 1.0, "tau", self.tau, "more than 0, at most 1")
        require(self.reward_scale > 0.0, "reward_scale", self.reward_scale, "more than 0")
