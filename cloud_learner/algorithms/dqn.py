"""DQN: double, dueling, n-step, prioritized.

Mnih et al. 2015; van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning";
Wang et al. 2016, "Dueling network architectures"; Schaul et al. 2016 for priorities, whose first
values the devices send themselves (Horgan et al. 2018, "Distributed prioritized experience
replay"). The policy explores with an epsilon that travels in each version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloud_learner.algorithms.arrays import parts_of
from cloud_learner.algorithms.interface import Behaviour, DataKind, Setup, State
from cloud_learner.algorithms.optimiser import (
    Optimiser,
    annealed,
    flatten,
    load_weights,
    weights_of,
)
from cloud_learner.algorithms.rewards import RewardScale
from cloud_learner.algorithms.transition_settings import TransitionSettings
from cloud_learner.config import require
from cloud_learner.models.policy import Policy, build_policy
from cloud_learner.training.experience import Fresh, Transitions
from shoal.errors import ConfigError
from shoal.spaces import Discrete


@dataclass(frozen=True, slots=True)
class DqnSettings(TransitionSettings):
    """Hyper-parameters of DQN; `tau = 1` with a long `target_interval` is the target as published.

    Rewards are normalized here: without it the Huber loss takes large values for outliers, and
    hardly learns where they end.

    Attributes:
        double: Whether the network in training chooses the next action and the target values it.
        dueling: Whether the network has a stream for the state's value and one for advantages.
        target_interval: Updates between moves of the target towards the network.
        epsilon_start: How often it explores at first.
        epsilon_final: How often after `epsilon_steps`.
        epsilon_steps: Environment steps over which that moves, linearly.
    """

    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    double: bool = True
    dueling: bool = True
    target_interval: int = 1
    tau: float = 0.01
    epsilon_start: float = 1.0
    epsilon_final: float = 0.05
    epsilon_steps: int = 10_000
    normalize_rewards: bool = True
    batch_size: int = 64
    gradient_steps: int = 8
    updates_per_transition: float = 0.5
    n_step: int = 3

    def __post_init__(self) -> None:
        TransitionSettings.__post_init__(self)
        for key in ("epsilon_start", "epsilon_final"):
            require(0.0 <= getattr(self, key) <= 1.0, key, getattr(self, key), "0 to 1")
        require(self.target_interval >= 1, "target_interval", self.target_interval, "1 or more")
        require(self.epsilon_steps >= 0, "epsilon_steps", self.epsilon_steps, "0 or more")


class DQN:
    """Trains action values.

    >>> algorithm = DQN(Setup(spec, NetworkConfig(), seed=0), DQN.Settings())
    >>> algorithm.learn(transitions)["value_loss"]

    Attributes:
        errors: |TD error| `[M]` of the rows of the last `learn`.
    """

    Settings: ClassVar[type[DqnSettings]] = DqnSettings
    data: ClassVar[DataKind] = "transitions"

    def __init__(self, setup: Setup, settings: DqnSettings) -> None:
        """Builds the network and its target.

        Raises:
            ConfigError: Actions are not Discrete, or the network has memory.
        """
        if not isinstance(setup.spec.action, Discrete):
            raise ConfigError("DQN acts in one Discrete space; use SAC or APPO for other actions")
        self._settings = settings

        def network() -> Policy:  # equal seeds, equal weights: the target begins as a copy
            return build_policy(
                setup.spec,
                setup.network,
                head="greedy",
                seed=setup.seed,
                dueling=settings.dueling,
            )

        self.policy, self._target = network(), network()
        if self.policy.state_width:
            raise ConfigError("DQN trains no memory: use training.network.kind mlp or cnn, or APPO")
        self._target.normalizer = self.policy.normalizer  # one and the same: it is no weight
        self._optimiser = Optimiser(self.policy.parameters(), settings)
        self._target_flat = flatten(list(self._target.parameters()))
        self._rewards = RewardScale(
            settings.gamma, fixed=settings.reward_scale, normalize=settings.normalize_rewards
        )
        self._env_steps = 0
        self._note_steps(0)
        # Devices reckon in rewards as they are; where the learner scales them it asks for none.
        asks = settings.priority_alpha > 0.0 and not settings.normalize_rewards
        own_units = settings.reward_scale == 1.0
        self.behaviour = Behaviour(priority_gamma=settings.gamma if asks and own_units else 0.0)
        self.policy.relative_values = self.behaviour.priority_gamma == 0.0
        self.errors: NDArray[np.float32] | None = None

    @property
    def updates(self) -> int:
        """Optimiser updates."""
        return self._optimiser.updates

    @property
    def skipped(self) -> int:
        """Losses or gradients that were not finite."""
        return self._optimiser.skipped

    def observe(self, fresh: Fresh) -> None:
        """Sees every chunk once: it counts environment steps."""
        self.policy.observe(fresh.observations)
        self._rewards.observe(fresh.rewards, fresh.ended)
        self._note_steps(fresh.rewards.size)

    def note_given_weights(self) -> None:
        """Has the target begin as a copy of weights that were set from a file."""
        with torch.no_grad():
            self._target_flat.copy_(self._optimiser.flat)

    def learn(self, batch: Transitions) -> Mapping[str, float]:
        """Makes `gradient_steps` updates, each from its own part of the batch."""
        optimiser = self._optimiser
        learning_rate = optimiser.learning_rate
        loss_sum, norm_sum, value_sum, applied = 0.0, 0.0, 0.0, 0
        errors: list[Tensor] = []
        for columns in parts_of(batch, self._settings.gradient_steps):
            values = self.policy(columns["observations"])
            chosen = values.gather(-1, columns["actions"].unsqueeze(-1)).squeeze(-1)
            targets = self.targets(columns)
            losses = functional.smooth_l1_loss(chosen, targets, reduction="none")
            loss = (columns["weights"] * losses).mean()
            norm = optimiser.descend(loss)
            errors.append((chosen.detach() - targets).abs())
            if norm is None:
                continue
            applied += 1
            loss_sum, norm_sum = loss_sum + loss.item(), norm_sum + norm
            value_sum += chosen.detach().mean().item()
            if optimiser.updates % self._settings.target_interval == 0:
                with torch.no_grad():
                    self._target_flat.lerp_(optimiser.flat, self._settings.tau)
        self.errors = torch.cat(errors).numpy()
        return {
            "value_loss": loss_sum / max(applied, 1),
            "value_mean": value_sum / max(applied, 1),
            "gradient_norm": norm_sum / max(applied, 1),
            "learning_rate": learning_rate,
            "epsilon": self.policy.epsilon,
            "reward_factor": self._rewards.factor,
        }

    def targets(self, columns: Mapping[str, Tensor]) -> Tensor:
        """What the chosen actions should be worth `[M]`: y = r + discount Q'(s', argmax Q(s'))."""
        with torch.no_grad():
            following = columns["next_observations"]
            values = self._target(following)
            if self._settings.double:
                best = self.policy(following).argmax(-1, keepdim=True)
                value = values.gather(-1, best).squeeze(-1)
            else:
                value = values.amax(-1)
            found: Tensor = columns["rewards"] * self._rewards.factor
            return torch.addcmul(found, columns["discounts"], value)

    def state_dict(self) -> State:
        """A copy of everything training goes on from."""
        return {
            "policy": weights_of(self.policy),
            "target": self._target_flat.detach().clone(),
            "optimiser": dict(self._optimiser.state_dict()),
            "rewards": dict(self._rewards.state_dict()),
            "env_steps": self._env_steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """
        load_weights(self.policy, state["policy"])
        with torch.no_grad():
            self._target_flat.copy_(state["target"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._rewards.load_state_dict(state["rewards"])
        self._env_steps = state["env_steps"]
        self._note_steps(0)

    def _note_steps(self, steps: int) -> None:
        settings = self._settings
        self._env_steps += steps
        self.policy.epsilon = (
            annealed(
                settings.epsilon_start,
                settings.epsilon_final,
                self._env_steps,
                settings.epsilon_steps,
            )
            if settings.epsilon_steps
            else settings.epsilon_final
        )
