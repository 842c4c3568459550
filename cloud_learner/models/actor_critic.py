"""The network that is trained: a policy whose layers can be quantized, and a separate critic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloud_learner.models.distributions import Distribution, distribution_of
from shoal.errors import ConfigError
from shoal.spaces import Box, Discrete, EnvSpec, observation_box, width

_LOG_STD_START = -0.5  # in half ranges of a bounded action: explores without living at the bounds
_LOG_STD_BOUNDS = (-5.0, 2.0)
_HEAD_GAIN = 0.01  # a near-uniform start (Andrychowicz et al. 2021, "What matters in on-policy RL")
_PIXEL_RANGE = 255.0


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One affine layer, `y = x @ weight + bias`.

    Attributes:
        weight: float32 `[in, out]`.
        bias: float32 `[out]`.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class PolicyWeights:
    """A policy as plain arrays: ReLU between the layers, none after the last.

    The first layer takes the flattened observation as the environment gives it, the last gives
    logits or means in the environment's own units: scales are folded into them.

    Attributes:
        layers: First to last.
        log_std: float32 `[A]` for Box actions.
    """

    layers: tuple[Dense, ...]
    log_std: NDArray[np.float32] | None

    @property
    def finite(self) -> bool:
        """Whether every number is finite."""
        arrays = [a for layer in self.layers for a in (layer.weight, layer.bias)]
        arrays += [] if self.log_std is None else [self.log_std]
        return all(bool(np.isfinite(a).all()) for a in arrays)


class ActorCritic(nn.Module):
    """Policy and value networks over one environment's spaces.

    >>> model = build_model(spec, hidden=(64, 64), seed=0)
    >>> params = model.distribution_params(observations)   # [..., P]
    >>> model.distribution.log_prob(params, actions)       # [...]
    """

    input_scale: Tensor
    action_center: Tensor
    action_scale: Tensor

    def __init__(self, spec: EnvSpec, hidden: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        box = observation_box(spec)
        self.distribution: Distribution = distribution_of(spec.action)
        self.hidden = hidden
        self._axes = len(box.shape)
        inputs, outputs = math.prod(box.shape), width(spec.action)
        self.policy = _mlp((inputs, *hidden, outputs), _HEAD_GAIN, generator)
        self.critic = _mlp((inputs, *hidden, 1), 1.0, generator)
        scale = 1.0 / _PIXEL_RANGE if box.dtype == np.uint8 else 1.0
        self.register_buffer("input_scale", torch.tensor(scale))
        self._scaled = scale != 1.0
        center, half = _action_range(spec.action)
        self.register_buffer("action_center", torch.from_numpy(center))
        self.register_buffer("action_scale", torch.from_numpy(half))
        self.log_std: nn.Parameter | None = None
        if isinstance(spec.action, Box):
            self.log_std = nn.Parameter(torch.full((outputs,), _LOG_STD_START))

    def distribution_params(self, observations: Tensor) -> Tensor:
        """Parameters `[..., P]` of the action distribution at observations `[..., *obs]`."""
        out: Tensor = self.policy(self._features(observations))
        if self.log_std is None:
            return out
        mean = torch.addcmul(self.action_center, out, self.action_scale)
        log_std = self.log_std.clamp(*_LOG_STD_BOUNDS) + self.action_scale.log()
        return torch.cat((mean, log_std.expand_as(mean)), -1)

    def value(self, observations: Tensor) -> Tensor:
        """Expected discounted return `[...]` from observations `[..., *obs]`."""
        out: Tensor = self.critic(self._features(observations))
        return out.squeeze(-1)

    @property
    def policy_layers(self) -> list[nn.Linear]:
        """The policy's affine layers, first to last."""
        return [layer for layer in self.policy if isinstance(layer, nn.Linear)]

    def policy_weights(self) -> PolicyWeights:
        """The policy alone, as arrays of its own, with every scale folded in."""
        with torch.no_grad():
            weights = [layer.weight.T.clone() for layer in self.policy_layers]
            biases = [layer.bias.clone() for layer in self.policy_layers]
            weights[0] *= self.input_scale
            log_std: NDArray[np.float32] | None = None
            if self.log_std is not None:
                weights[-1] *= self.action_scale
                biases[-1] = torch.addcmul(self.action_center, biases[-1], self.action_scale)
                log_std = (self.log_std.clamp(*_LOG_STD_BOUNDS) + self.action_scale.log()).numpy()
            layers = tuple(
                Dense(np.ascontiguousarray(weight.numpy()), bias.numpy())
                for weight, bias in zip(weights, biases, strict=True)
            )
        return PolicyWeights(layers=layers, log_std=log_std)

    def _features(self, observations: Tensor) -> Tensor:
        flat = observations if self._axes == 1 else _flatten(observations, self._axes)
        if flat.dtype != torch.float32:
            flat = flat.to(torch.float32)
        return flat * self.input_scale if self._scaled else flat


def build_model(spec: EnvSpec, hidden: tuple[int, ...] = (64, 64), seed: int = 0) -> ActorCritic:
    """Builds the network of an environment; equal seeds give equal weights.

    Args:
        spec: The spaces.
        hidden: Width of each hidden layer, of both the policy and the critic.
        seed: Of the initial weights; torch's global generator is left alone.

    Raises:
        ConfigError: There is no hidden layer, or a width is below 1.
        WireError: Observations are not a Box.
    """
    if not hidden or min(hidden) < 1:
        raise ConfigError(f"training.hidden = {hidden}: use one or more widths of 1 or more")
    return ActorCritic(spec, hidden, torch.Generator().manual_seed(seed))


def _mlp(sizes: tuple[int, ...], head_gain: float, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        with torch.random.fork_rng(devices=[]):  # it draws weights, which are drawn again below
            linear = nn.Linear(inputs, outputs)
        gain = head_gain if index == last else math.sqrt(2.0)
        nn.init.orthogonal_(linear.weight, gain, generator=generator)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
        if index != last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def _flatten(observations: Tensor, axes: int) -> Tensor:
    if axes == 0:
        return observations.unsqueeze(-1)
    return observations.flatten(-axes)


def _action_range(
    action: Box | Discrete,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Centre and half range `[A]` of each action element; 0 and 1 where it has no bounds."""
    if isinstance(action, Discrete):
        return np.zeros(action.n, np.float32), np.ones(action.n, np.float32)
    low, high = action.low.astype(np.float64).ravel(), action.high.astype(np.float64).ravel()
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
    with np.errstate(invalid="ignore"):  # infinities cancel where there are no bounds
        center = np.where(bounded, (high + low) / 2.0, 0.0)
        half = np.where(bounded, (high - low) / 2.0, 1.0)
    return center.astype(np.float32), half.astype(np.float32)
