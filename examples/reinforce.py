"""An algorithm of your own: REINFORCE with a baseline (Williams 1992), in one file.

    shoal demo --algorithm examples.reinforce:Reinforce --chunk-steps 128 --until-return 195

A class with `Settings`, `data`, `policy`, `updates`, `learn` and a state is all that the learner
asks for. Batches come with what devices did; the policy is quantized, signed and pushed by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cloud_learner.algorithms.actor_critic_view import actor_critic_view
from cloud_learner.algorithms.arrays import tensor
from cloud_learner.algorithms.interface import Setup
from cloud_learner.algorithms.optimiser import Optimiser, OptimiserSettings
from cloud_learner.models.actor_critic import build_actor_critic
from cloud_learner.training.experience import Batch


@dataclass(frozen=True, slots=True)
class ReinforceSettings(OptimiserSettings):
    """The table `[training.settings]`: `shoal demo --set training.settings.gamma=0.95`."""

    learning_rate: float = 5e-3
    gamma: float = 0.98


class Reinforce:
    """Makes actions likelier that were followed by more reward than the critic expected."""

    Settings, data = ReinforceSettings, "rollouts"

    def __init__(self, setup: Setup, settings: ReinforceSettings) -> None:
        self._model = build_actor_critic(setup.spec, setup.network, seed=setup.seed)
        self.policy = self._model.policy
        self._optimiser = Optimiser(self._model.parameters(), settings)
        self._gamma = settings.gamma

    @property
    def updates(self) -> int:
        """Optimiser updates: the unit in which lag is counted."""
        return self._optimiser.updates

    def learn(self, batch: Batch) -> Mapping[str, float]:
        """One update from `[T, B]` steps."""
        seen = actor_critic_view(self._model, burn_in=0).look(batch)
        # Nothing follows a termination. What was cut short, by a time limit or by the chunk's end,
        # would have gone on: it is worth what the critic says of its own last observation.
        following = seen.next_values.detach().masked_fill(tensor(batch.terminated), 0.0)
        rewards, ended = tensor(batch.rewards), tensor(batch.ended)
        returns, ahead = torch.empty_like(rewards), following[-1]
        for t in reversed(range(len(rewards))):
            ahead = rewards[t] + self._gamma * torch.where(ended[t], following[t], ahead)
            returns[t] = ahead
        surprise = (returns - seen.values) / (returns.std() + 1e-6)
        log_probs = self.policy.distribution.log_prob(seen.params, tensor(batch.actions))
        policy_loss = -(log_probs * surprise.detach()).mean()
        self._optimiser.descend(policy_loss + surprise.square().mean())
        return {"policy_loss": policy_loss.item()}

    def state_dict(self) -> Mapping[str, Any]:
        """What training goes on from."""
        return {"model": self._model.state_dict(), "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from it."""
        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
