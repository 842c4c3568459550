"""APPO: asynchronous PPO with V-trace targets and the decoupled objective.

Three policies take part: the behaviour policy that acted on a device (its int8 graph said with
which log-probability), the proximal policy (the learner's when the batch began) and the current
one. Importance weights correct from behaviour to proximal, the clip holds current near proximal
(Hilton et al. 2022, "Batch size-invariance for policy optimization", equation 3). At lag 0 and
full precision both are PPO (Schulman et al. 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.nn import functional

from cloud_learner.algorithms.actor_critic_view import Columns, actor_critic_view
from cloud_learner.algorithms.appo_settings import AppoSettings
from cloud_learner.algorithms.arrays import tensor
from cloud_learner.algorithms.critic_warmup import CriticWarmup
from cloud_learner.algorithms.differentiable import layout_digest
from cloud_learner.algorithms.interface import DataKind, Setup, State
from cloud_learner.algorithms.optimiser import (
    Optimiser,
    annealed,
    load_weights,
    weights_of,
)
from cloud_learner.algorithms.rewards import RewardScale
from cloud_learner.algorithms.vtrace import vtrace
from cloud_learner.models.actor_critic import build_actor_critic
from cloud_learner.models.distributions import sampled_kl
from cloud_learner.training.experience import Batch
from shoal.gradients import Computed, Floats

_MIN_STD: Final = 1e-8
_LOG_RATIO_BOUND: Final = 20.0  # e^20: far beyond any clip, far below overflow
_LONGEST_HORIZON: Final = 1000.0  # steps; what a discount of 1 counts as
_KL_SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """A batch, prepared: columns of equal length R that minibatches take rows of.

    Attributes:
        columns: By name, `[R, ...]`.
        metrics: Scalars about the batch as it stood before any update.
    """

    columns: Columns
    metrics: Mapping[str, Tensor]

    @property
    def rows(self) -> int:
        """R."""
        return int(next(iter(self.columns.values())).shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What one minibatch gives.

    Attributes:
        total: The scalar to descend.
        metrics: Scalars without gradients.
    """

    total: Tensor
    metrics: Mapping[str, Tensor]


class APPO:
    """Trains an actor and a critic, `epochs` passes over each batch in `minibatches` parts.

    >>> algorithm = APPO(Setup(spec, NetworkConfig(), seed=0), APPO.Settings())
    >>> algorithm.learn(batch)["policy_loss"]
    """

    Settings: ClassVar[type[AppoSettings]] = AppoSettings
    data: ClassVar[DataKind] = "rollouts"

    def __init__(self, setup: Setup, settings: AppoSettings) -> None:
        """Builds actor and critic.

        Raises:
            ConfigError: The network cannot be built.
        """
        self.model = build_actor_critic(setup.spec, setup.network, seed=setup.seed)
        self.policy = self.model.policy
        self._view = actor_critic_view(self.model, burn_in=settings.burn_in)
        self._settings = settings
        self._optimiser = Optimiser(self.model.parameters(), settings)
        self._warmup = CriticWarmup(settings.init_critic_updates)
        self._rewards = RewardScale(
            settings.gamma, fixed=settings.reward_scale, normalize=settings.normalize_rewards
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        # The critic speaks in units of sqrt(horizon): between single rewards, in which it would
        # never stop trembling, and their sum, which it would take thousands of updates to reach.
        horizon = min(1.0 / max(1.0 - settings.gamma, 1e-9), _LONGEST_HORIZON)
        self._value_unit = math.sqrt(horizon)

    @property
    def updates(self) -> int:
        """Optimiser updates."""
        return self._optimiser.updates

    @property
    def skipped(self) -> int:
        """Minibatches whose loss or gradient was not finite."""
        return self._optimiser.skipped

    def note_given_weights(self) -> None:
        """Has the critic come to know a policy whose weights were set from a file."""
        self._warmup.begin(self.updates)

    def learn(self, batch: Batch) -> Mapping[str, float]:
        """Trains on one batch; a minibatch that is not finite changes nothing and is counted."""
        settings, optimiser = self._settings, self._optimiser
        if self._warmup.ends(self.updates):
            optimiser.restart()  # with moments of 0 the policy's first steps would be far too long
        self.policy.observe(batch.observations[:-1].reshape(-1, *batch.observations.shape[2:]))
        self._rewards.observe(batch.rewards, batch.ended)
        learning_rate = optimiser.learning_rate
        targets = self.prepare(batch)
        sums: dict[str, Tensor] = {}
        applied, epochs, norm_sum = 0, 0, 0.0
        while epochs < settings.epochs:
            divergence, parts = 0.0, 0
            for columns in self.minibatches(targets):
                loss = self.loss(columns)
                norm = optimiser.descend(loss.total, learning_rate=learning_rate)
                if norm is None:
                    continue
                applied += 1
                norm_sum += norm
                for name, value in loss.metrics.items():
                    sums[name] = sums[name] + value if name in sums else value
                if "kl_sampled" in loss.metrics:
                    divergence += loss.metrics["kl_sampled"].item()
                    parts += 1
            epochs += 1
            target = settings.kl_target
            if target is not None and divergence > _KL_SLACK * target * max(parts, 1):
                break
        reviewed = self.review(targets)
        values = {
            name: value.item() for name, value in (*targets.metrics.items(), *reviewed.items())
        }
        values |= {name: value.item() / applied for name, value in sums.items()}
        return values | {
            "gradient_norm": norm_sum / max(applied, 1),
            "learning_rate": learning_rate,
            "epochs": float(epochs),
            "reward_factor": self._rewards.factor,
        }

    @property
    def flat(self) -> Floats:
        """`[P]` float32, a view of every parameter of actor and critic."""
        flat: Floats = self._optimiser.flat.detach().numpy()
        return flat

    @property
    def layout_digest(self) -> bytes:
        """32 bytes, of their names, shapes and order."""
        return layout_digest(self.model)

    def note_updates(self, updates: int) -> None:
        """Follows a count of updates that were made elsewhere."""
        self._optimiser.note_updates(updates)

    def gradient(self, targets: Targets) -> Computed:
        """The gradient of the loss of a whole batch, at weights that stay as they are.

        The proximal policy is the one that prepared the batch; the present one is held near it.
        """
        loss = self.loss(targets.columns)
        gradient = self._optimiser.gradient(loss.total)
        metrics = {**targets.metrics, **loss.metrics, **self.review(targets)}
        values: Floats = gradient.numpy()
        return Computed(values, {name: value.item() for name, value in metrics.items()})

    def prepare(self, batch: Batch) -> Targets:
        """One pass over the batch: values, proximal log-probabilities, V-trace."""
        settings, view = self._settings, self._view
        behaviour = tensor(batch.log_probs)
        actions = tensor(batch.actions)
        rewards = tensor(batch.rewards)
        if (factor := self._rewards.factor) != 1.0:
            rewards = rewards * factor
        with torch.no_grad():
            seen = view.look(batch)
            values = seen.values * self._value_unit
            proximal = self.policy.distribution.log_prob(seen.params, actions)
            log_ratios = (proximal - behaviour).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
            ratios = log_ratios.exp()
            trace = vtrace(
                values=values,
                next_values=seen.next_values * self._value_unit,
                rewards=rewards,
                terminated=tensor(batch.terminated),
                truncated=tensor(batch.truncated),
                ratios=ratios,
                gamma=settings.gamma,
                trace_lambda=settings.trace_lambda,
                rho_bar=settings.rho_bar,
                c_bar=settings.c_bar,
            )
            advantages = view.trained(trace.advantages)
            if settings.normalize_advantages:
                advantages = (advantages - advantages.mean()) / (
                    advantages.std(correction=0) + _MIN_STD
                )
            weights = view.trained(ratios).clamp(max=settings.rho_bar)
            by_step = {
                "actions": view.trained(actions),
                "proximal": view.trained(proximal),
                "costs": (weights * advantages).neg(),
                "critic_targets": view.trained(trace.targets) / self._value_unit,
                "critic_values": view.trained(values) / self._value_unit,
            }
            if settings.kl_coef:
                by_step["proximal_params"] = view.trained(seen.params)
            spread = trace.targets.var(correction=0)
            metrics = {
                "kl_staleness": sampled_kl(log_ratios),
                "importance_mean": ratios.mean(),
                "importance_truncated": (ratios > settings.rho_bar).float().mean(),
                "explained_variance": 1.0
                - (trace.targets - values).var(correction=0) / (spread + _MIN_STD),
                "value_mean": values.mean(),
                "value_target_mean": trace.targets.mean(),
                "advantage_std": trace.advantages.std(correction=0),
            }
            columns = view.columns(batch, by_step)
        return Targets(columns=columns, metrics=metrics)

    def minibatches(self, targets: Targets) -> Iterator[Columns]:
        """Every row once, in `minibatches` parts of a random order."""
        parts = min(self._settings.minibatches, targets.rows)
        if parts == 1:
            yield targets.columns
            return
        order = torch.randperm(targets.rows, generator=self._generator)
        shuffled = {name: column[order] for name, column in targets.columns.items()}
        split = {name: column.tensor_split(parts) for name, column in shuffled.items()}
        for part in range(parts):
            yield {name: pieces[part] for name, pieces in split.items()}

    def loss(self, columns: Columns) -> Loss:
        """Clipped policy loss, value loss, entropy bonus and KL penalty of some rows."""
        settings, distribution = self._settings, self.policy.distribution
        params, values = self._view.again(columns)
        log_ratio = distribution.log_prob(params, columns["actions"]) - columns["proximal"]
        ratio = log_ratio.exp()
        costs = columns["costs"]
        clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
        worst = torch.maximum(ratio * costs, clipped * costs)
        if settings.dual_clip is not None:  # Ye et al. 2020: bounds what one bad action can do
            worst = torch.where(costs > 0.0, worst.minimum(settings.dual_clip * costs), worst)
        policy_loss = worst.mean()
        value_loss = _value_loss(values, columns, settings)
        metrics = {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach()}
        if self._warmup.active:
            return Loss(total=value_loss * settings.value_coef, metrics=metrics)
        total = torch.add(policy_loss, value_loss, alpha=settings.value_coef)
        if entropy_coef := self._entropy_coef():
            entropy = distribution.entropy(params).mean()
            total = torch.sub(total, entropy, alpha=entropy_coef)
        if settings.kl_coef:
            penalty = distribution.kl(columns["proximal_params"], params).mean()
            total = torch.add(total, penalty, alpha=settings.kl_coef)
            metrics["kl_penalty"] = penalty.detach()
        if settings.kl_target is not None:
            metrics["kl_sampled"] = sampled_kl(log_ratio.detach())
        return Loss(total=total, metrics=metrics)

    def review(self, targets: Targets) -> Mapping[str, Tensor]:
        """Entropy, KL(current || proximal) and how much of the batch reached the clip."""
        columns, distribution = targets.columns, self.policy.distribution
        with torch.no_grad():
            params = self._view.params_again(columns)
            log_ratio = distribution.log_prob(params, columns["actions"]) - columns["proximal"]
            moved = log_ratio.expm1().abs()
            return {
                "entropy": distribution.entropy(params).mean(),
                "kl": sampled_kl(log_ratio),
                "clip_fraction": (moved > self._settings.clip).float().mean(),
            }

    def state_dict(self) -> State:
        """A copy of everything training goes on from."""
        return {
            "model": weights_of(self.model),
            "optimiser": dict(self._optimiser.state_dict()),
            "rewards": dict(self._rewards.state_dict()),
            "generator": self._generator.get_state(),
            "critic_only_until": self._warmup.until,
        }

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """
        load_weights(self.model, state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._rewards.load_state_dict(state["rewards"])
        self._generator.set_state(state["generator"])
        self._warmup.until = state.get("critic_only_until", 0)

    def _entropy_coef(self) -> float:
        settings = self._settings
        if settings.final_entropy_coef is None:
            return settings.entropy_coef
        return annealed(
            settings.entropy_coef,
            settings.final_entropy_coef,
            self.updates,
            settings.anneal_updates,
        )


def _value_loss(values: Tensor, columns: Columns, settings: AppoSettings) -> Tensor:
    targets = columns["critic_targets"]
    if settings.value_loss == "huber":
        return functional.smooth_l1_loss(values, targets)
    if settings.value_loss == "clipped":
        before = columns["critic_values"]
        near = before + (values - before).clamp(-settings.clip, settings.clip)
        return torch.maximum((values - targets).square(), (near - targets).square()).mean()
    return functional.mse_loss(values, targets)
