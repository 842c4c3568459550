"""An algorithm of your own: REINFORCE (Williams 1992), in one file.

    shoal demo --algorithm examples.reinforce:Reinforce --chunk-steps 128 --until-return 195

A class with `Settings`, `data`, `policy`, `updates`, `learn` and a state is all that the learner
asks for. Batches come with what devices did; the policy is quantized, signed and pushed by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cloud_learner.algorithms.arrays import tensor
from cloud_learner.algorithms.interface import Setup
from cloud_learner.algorithms.optimiser import Optimiser, OptimiserSettings
from cloud_learner.models.policy import build_policy
from cloud_learner.training.experience import Batch


@dataclass(frozen=True, slots=True)
class ReinforceSettings(OptimiserSettings):
    """The table `[training.settings]`: `shoal demo --set training.settings.gamma=0.95`."""

    learning_rate: float = 5e-3
    gamma: float = 0.98


class Reinforce:
    """Makes actions likelier that were followed by more reward than the others' at that step."""

    Settings = ReinforceSettings
    data = "rollouts"

    def __init__(self, setup: Setup, settings: ReinforceSettings) -> None:
        self.policy = build_policy(setup.spec, setup.network, head="sample", seed=setup.seed)
        self._optimiser = Optimiser(self.policy.parameters(), settings)
        self._gamma = settings.gamma

    @property
    def updates(self) -> int:
        """Optimiser updates: the unit in which lag is counted."""
        return self._optimiser.updates

    def learn(self, batch: Batch) -> Mapping[str, float]:
        """One update from `[T, B]` steps."""
        returns = np.zeros((batch.rewards.shape[0] + 1, batch.rewards.shape[1]), np.float32)
        for t in reversed(range(len(batch.rewards))):
            returns[t] = batch.rewards[t] + self._gamma * returns[t + 1] * ~batch.ended[t]
        advantages = tensor(returns[:-1] - returns[:-1].mean(axis=1, keepdims=True))
        unrolled = self.policy.unroll(
            tensor(batch.observations[:-1]), tensor(batch.initial_state), tensor(batch.starts)
        )
        log_probs = self.policy.distribution.log_prob(unrolled.params, tensor(batch.actions))
        loss = -(log_probs * advantages).mean() / (advantages.std() + 1e-6)
        self._optimiser.descend(loss)
        with torch.no_grad():
            entropy = self.policy.distribution.entropy(unrolled.params).mean()
        return {"policy_loss": loss.item(), "entropy": entropy.item()}

    def state_dict(self) -> Mapping[str, Any]:
        """What training goes on from."""
        return {"policy": self.policy.state_dict(), "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from it."""
        self.policy.load_state_dict(state["policy"])
        self._optimiser.load_state_dict(state["optimiser"])
