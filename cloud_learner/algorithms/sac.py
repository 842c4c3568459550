"""SAC: soft actor-critic with twin critics and a temperature that tunes itself.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications": equations 5 and 6 for the
critics, 9 for the actor, 18 for the temperature. The policy is a Gaussian squashed into the bounds
of a Box, so what devices send is an action of the environment, and nothing is ever clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloud_learner.algorithms.arrays import parts_of
from cloud_learner.algorithms.critic_warmup import CriticWarmup
from cloud_learner.algorithms.interface import Behaviour, DataKind, Setup, State
from cloud_learner.algorithms.optimiser import (
    Optimiser,
    flatten,
    load_weights,
    stacked,
    weights_of,
)
from cloud_learner.algorithms.rewards import RewardScale
from cloud_learner.algorithms.transition_settings import TransitionSettings
from cloud_learner.config import require
from cloud_learner.models.exploring import Sampled, SquashedGaussian
from cloud_learner.models.policy import build_policy
from cloud_learner.models.q_function import TwinQFunction, build_q_function
from cloud_learner.training.experience import Fresh, Transitions
from shoal.errors import ConfigError
from shoal.layout import ActionLayout


@dataclass(frozen=True, slots=True)
class SacSettings(TransitionSettings):
    """Hyper-parameters of SAC; the schedule of the learning rate is the actor's and the critics'.

    Attributes:
        temperature: What an action's entropy is worth at first, in units of reward.
        tune_temperature: Whether it then follows the entropy.
        target_entropy: Where to, in nats, of actions measured from -1 to 1; None: minus their
            number.
        init_critic_updates: Updates in which only the critics learn, after the policy was given by
            a file that has none.
        noise_correlation: Of one step's exploration noise with the next step's, 0 to 1.
    """

    learning_rate: float = 3e-4
    max_grad_norm: float = math.inf
    temperature: float = 1.0
    tune_temperature: bool = True
    target_entropy: float | None = None
    init_critic_updates: int = 1000
    noise_correlation: float = 0.0

    def __post_init__(self) -> None:
        TransitionSettings.__post_init__(self)
        require(self.temperature > 0.0, "temperature", self.temperature, "more than 0")
        warmup = self.init_critic_updates
        require(warmup >= 0, "init_critic_updates", warmup, "0 or more")
        correlation = self.noise_correlation
        require(0.0 <= correlation < 1.0, "noise_correlation", correlation, "0 to below 1")


class SAC:
    """Trains an actor, two critics and the temperature.

    >>> algorithm = SAC(Setup(spec, NetworkConfig(), seed=0), SAC.Settings())
    >>> algorithm.learn(transitions)["critic_loss"]

    Attributes:
        errors: |TD error| `[M]` of the rows of the last `learn`.
    """

    Settings: ClassVar[type[SacSettings]] = SacSettings
    data: ClassVar[DataKind] = "transitions"

    def __init__(self, setup: Setup, settings: SacSettings) -> None:
        """Builds the networks.

        Raises:
            ConfigError: Actions are no Box with bounds, or the network has memory.
        """
        self._settings = settings
        self.policy = build_policy(setup.spec, setup.network, head="squash", seed=setup.seed)
        if self.policy.state_width:
            raise ConfigError("SAC trains no memory: use training.network.kind mlp or cnn, or APPO")
        distribution = self.policy.distribution
        if not isinstance(distribution, SquashedGaussian):
            raise ConfigError("SAC acts in one Box with bounds; use APPO for other actions")
        self._distribution = distribution

        def twin() -> TwinQFunction:  # equal seeds, equal weights: the targets begin as copies
            members = [
                build_q_function(
                    setup.spec,
                    setup.network,
                    seed=setup.seed + 1 + index,
                    normalizer=self.policy.normalizer,
                )
                for index in range(2)
            ]
            return TwinQFunction(members)

        self._critics, self._targets = twin(), twin()
        self._actor_optimiser = Optimiser(self.policy.parameters(), settings)
        self._critic_optimiser = Optimiser(self._critics.parameters(), settings, copies=2)
        self._critics.lie_in(self._critic_optimiser.leaves)
        targets = list(self._targets.parameters())
        self._target_flat = flatten(targets)
        self._targets.lie_in(stacked(self._target_flat, targets, 2))
        self._warmup = CriticWarmup(settings.init_critic_updates)
        self._log_temperature = nn.Parameter(torch.tensor([math.log(settings.temperature)]))
        constant = replace(settings, final_learning_rate=None)
        self._temperature_optimiser = Optimiser([self._log_temperature], constant)
        self._size = ActionLayout.of(setup.spec.action).size
        # Densities are reckoned for actions from -1 to 1, whatever the environment's units are, so
        # that entropy is worth the same everywhere.
        self._log_half = float(distribution.half.log().sum())
        wanted = settings.target_entropy
        self._target_entropy = -float(self._size) if wanted is None else wanted
        self._rewards = RewardScale(
            settings.gamma, fixed=settings.reward_scale, normalize=settings.normalize_rewards
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self.behaviour = Behaviour(noise_correlation=settings.noise_correlation)
        self.errors: NDArray[np.float32] | None = None

    @property
    def updates(self) -> int:
        """Updates of the actor."""
        return self._actor_optimiser.updates

    @property
    def skipped(self) -> int:
        """Losses or gradients of any of the networks that were not finite."""
        optimisers = (self._actor_optimiser, self._critic_optimiser, self._temperature_optimiser)
        return sum(optimiser.skipped for optimiser in optimisers)

    def observe(self, fresh: Fresh) -> None:
        """Sees every chunk once."""
        self.policy.observe(fresh.observations)
        self._rewards.observe(fresh.rewards, fresh.ended)

    def note_given_weights(self) -> None:
        """Has the critics come to know a policy whose weights were set from a file."""
        self._warmup.begin(self.updates)

    def learn(self, batch: Transitions) -> Mapping[str, float]:
        """Makes `gradient_steps` updates of everything, each from its own part of the batch."""
        sums: dict[str, float] = {}
        errors: list[Tensor] = []
        parts = parts_of(batch, self._settings.gradient_steps)
        for columns in parts:
            for name, value in self._update(columns, errors).items():
                sums[name] = sums.get(name, 0.0) + value / len(parts)
        self.errors = torch.cat(errors).numpy()
        return sums | {
            "temperature": self._log_temperature.exp().item(),
            "learning_rate": self._actor_optimiser.learning_rate,
            "reward_factor": self._rewards.factor,
        }

    def critic_targets(self, columns: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """What the critics should say `[M]`: y = r + discount (min Q'(s', a') - alpha log pi)."""
        with torch.no_grad():
            following = columns["next_observations"]
            sampled = self._act(following, noise)
            value = self._least(self._targets, following, sampled.action)
            value = value - self._log_temperature.exp() * sampled.log_prob
            return columns["rewards"] * self._rewards.factor + columns["discounts"] * value

    def state_dict(self) -> State:
        """A copy of everything training goes on from."""
        return {
            "policy": weights_of(self.policy),
            "critics": weights_of(self._critics),
            "targets": weights_of(self._targets),
            "log_temperature": self._log_temperature.detach().clone(),
            "actor_optimiser": dict(self._actor_optimiser.state_dict()),
            "critic_optimiser": dict(self._critic_optimiser.state_dict()),
            "temperature_optimiser": dict(self._temperature_optimiser.state_dict()),
            "rewards": dict(self._rewards.state_dict()),
            "generator": self._generator.get_state(),
            "critic_only_until": self._warmup.until,
        }

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """
        load_weights(self.policy, state["policy"])
        load_weights(self._critics, state["critics"])
        load_weights(self._targets, state["targets"])
        with torch.no_grad():
            self._log_temperature.copy_(state["log_temperature"])
        self._actor_optimiser.load_state_dict(state["actor_optimiser"])
        self._critic_optimiser.load_state_dict(state["critic_optimiser"])
        self._temperature_optimiser.load_state_dict(state["temperature_optimiser"])
        self._rewards.load_state_dict(state["rewards"])
        self._generator.set_state(state["generator"])
        self._warmup.until = state.get("critic_only_until", 0)

    def _update(self, columns: Mapping[str, Tensor], errors: list[Tensor]) -> dict[str, float]:
        if self._warmup.ends(self.updates):
            self._actor_optimiser.restart()  # with moments of 0 its first steps would be too long
        observations, weights = columns["observations"], columns["weights"]
        following_noise, noise = (self._noise(len(weights)) for _ in range(2))
        with self.policy.fixed_weights():
            sampled = self._act(observations, noise)
            targets = self.critic_targets(columns, following_noise)
        gaps = self._critics(observations, columns["actions"]) - targets
        critic_loss = 0.5 * (weights * gaps.square()).mean(-1).sum()
        critic_norm = self._critic_optimiser.descend(critic_loss)
        errors.append(gaps.detach().abs().mean(0))
        value = self._least(self._critics, observations, sampled.action)
        temperature = self._log_temperature.detach().exp()
        actor_loss = (temperature * sampled.log_prob - value).mean()
        learns = not self._warmup.active
        actor_norm = self._actor_optimiser.descend(actor_loss * float(learns))
        log_prob = sampled.log_prob.detach().mean()
        if self._settings.tune_temperature and learns:
            against = -(log_prob + self._target_entropy).reshape(1)  # the loss is linear in it
            loss = (self._log_temperature.detach() * against).item()
            self._temperature_optimiser.step(against, loss)
        with torch.no_grad():
            self._target_flat.lerp_(self._critic_optimiser.flat, self._settings.tau)
        found = {
            "critic_loss": critic_loss.item(),
            "policy_loss": actor_loss.item(),
            "entropy": -log_prob.item(),
            "value_mean": value.detach().mean().item(),
            "gradient_norm": actor_norm,
            "critic_gradient_norm": critic_norm,
        }
        return {name: number for name, number in found.items() if number is not None}

    def _act(self, observations: Tensor, noise: Tensor) -> Sampled:
        sampled = self._distribution.rsample(self.policy(observations), noise)
        return Sampled(sampled.action, sampled.log_prob + self._log_half)

    def _least(self, critics: TwinQFunction, observations: Tensor, actions: Tensor) -> Tensor:
        first, second = critics(observations, actions)
        return torch.minimum(first, second)

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self._size, generator=self._generator)
