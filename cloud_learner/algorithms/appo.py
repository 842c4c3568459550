"""APPO: asynchronous PPO with V-trace targets and the decoupled objective.

Three policies take part: the behaviour policy that acted on a device (its int8 graph said with
which log-probability), the proximal policy (the learner's when the batch began) and the current
one. Importance weights correct from behaviour to proximal, the clip holds current near proximal
(Hilton et al. 2022, "Batch size-invariance for policy optimization", equation 3). At lag 0 and
full precision both are PPO (Schulman et al. 2017).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cloud_learner.algorithms.interface import Loss, Targets
from cloud_learner.algorithms.vtrace import vtrace
from cloud_learner.config import AppoConfig
from cloud_learner.models.actor_critic import ActorCritic
from cloud_learner.models.distributions import sampled_kl
from cloud_learner.training.replay import Batch

_MIN_STD = 1e-8
_LOG_RATIO_BOUND = 20.0  # e^20: far beyond any clip, far below overflow
_LONGEST_HORIZON = 1000.0  # steps; what a discount of 1 counts as


class APPO:
    """Prepares batches and computes losses.

    >>> algorithm = APPO(AppoConfig())
    >>> targets = algorithm.prepare(model, batch)
    >>> algorithm.loss(model, targets.columns).total.backward()
    """

    def __init__(self, config: AppoConfig) -> None:
        self._config = config
        # The critic speaks in units of sqrt(horizon): between single rewards, in which it would
        # never stop trembling, and their sum, which it would take thousands of updates to reach.
        horizon = min(1.0 / max(1.0 - config.gamma, 1e-9), _LONGEST_HORIZON)
        self._value_unit = math.sqrt(horizon)

    def prepare(self, model: ActorCritic, batch: Batch) -> Targets:
        """One pass over the batch: values, proximal log-probabilities, V-trace."""
        config = self._config
        steps, lanes = batch.rewards.shape
        observations = _tensor(batch.observations)
        actions = _tensor(batch.actions)
        behaviour = _tensor(batch.log_probs)
        with torch.no_grad():
            all_values = model.value(observations) * self._value_unit
            values = all_values[:-1]
            next_values = all_values[1:].clone()
            if batch.final_index.size:
                index = _tensor(batch.final_index.astype(np.int64))
                finals = model.value(_tensor(batch.final_observations))
                next_values.view(-1)[index] = finals * self._value_unit
            acted_on = observations[:-1]
            params = model.distribution_params(acted_on)
            proximal = model.distribution.log_prob(params, actions)
            log_ratios = (proximal - behaviour).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
            ratios = log_ratios.exp()
            trace = vtrace(
                values=values,
                next_values=next_values,
                rewards=_tensor(batch.rewards),
                terminated=_tensor(batch.terminated),
                truncated=_tensor(batch.truncated),
                ratios=ratios,
                gamma=config.gamma,
                trace_lambda=config.trace_lambda,
                rho_bar=config.rho_bar,
                c_bar=config.c_bar,
            )
            advantages = trace.advantages
            if config.normalize_advantages:
                advantages = (advantages - advantages.mean()) / (
                    advantages.std(correction=0) + _MIN_STD
                )
            weights = ratios.clamp(max=config.rho_bar)
            rows = steps * lanes
            columns = {
                "observations": acted_on.reshape(rows, *acted_on.shape[2:]),
                "actions": actions.reshape(rows, *actions.shape[2:]),
                "proximal": proximal.reshape(rows),
                "costs": (weights * advantages).neg().reshape(rows),
                "critic_targets": trace.targets.reshape(rows) / self._value_unit,
                "critic_values": values.reshape(rows) / self._value_unit,
            }
            spread = trace.targets.var(correction=0)
            metrics = {
                "kl_staleness": sampled_kl(log_ratios),
                "importance_mean": ratios.mean(),
                "importance_truncated": (ratios > config.rho_bar).float().mean(),
                "explained_variance": 1.0
                - (trace.targets - values).var(correction=0) / (spread + _MIN_STD),
                "value_mean": values.mean(),
                "value_target_mean": trace.targets.mean(),
                "advantage_std": trace.advantages.std(correction=0),
            }
        return Targets(columns=columns, metrics=metrics)

    def loss(self, model: ActorCritic, columns: Mapping[str, Tensor]) -> Loss:
        """Clipped policy loss, value loss and entropy bonus of some rows."""
        config = self._config
        params = model.distribution_params(columns["observations"])
        log_ratio = model.distribution.log_prob(params, columns["actions"]) - columns["proximal"]
        ratio = log_ratio.exp()
        costs = columns["costs"]
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        worst = torch.maximum(ratio * costs, clipped * costs)
        if config.dual_clip is not None:  # Ye et al. 2020: bounds what one bad action can do
            worst = torch.where(costs > 0.0, worst.minimum(config.dual_clip * costs), worst)
        policy_loss = worst.mean()
        values = model.value(columns["observations"])
        value_loss = _value_loss(values, columns, config)
        total = torch.add(policy_loss, value_loss, alpha=config.value_coef)
        if config.entropy_coef:
            entropy = model.distribution.entropy(params).mean()
            total = torch.sub(total, entropy, alpha=config.entropy_coef)
        return Loss(
            total=total,
            metrics={"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach()},
        )

    def review(self, model: ActorCritic, targets: Targets) -> Mapping[str, Tensor]:
        """Entropy, KL(current || proximal) and how much of the batch reached the clip."""
        columns = targets.columns
        with torch.no_grad():
            params = model.distribution_params(columns["observations"])
            log_probs = model.distribution.log_prob(params, columns["actions"])
            log_ratio = log_probs - columns["proximal"]
            moved = log_ratio.expm1().abs()
            return {
                "entropy": model.distribution.entropy(params).mean(),
                "kl": sampled_kl(log_ratio),
                "clip_fraction": (moved > self._config.clip).float().mean(),
            }


def _value_loss(values: Tensor, columns: Mapping[str, Tensor], config: AppoConfig) -> Tensor:
    targets = columns["critic_targets"]
    if config.value_loss == "huber":
        return functional.smooth_l1_loss(values, targets)
    if config.value_loss == "clipped":
        before = columns["critic_values"]
        near = before + (values - before).clamp(-config.clip, config.clip)
        return torch.maximum((values - targets).square(), (near - targets).square()).mean()
    return functional.mse_loss(values, targets)


def _tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    """A tensor of an array, which is copied only if torch may not share it."""
    native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(native))
