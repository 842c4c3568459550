"""Action distributions: what a policy's raw outputs mean, with gradients.

The same parameters leave the int8 graph as its output `distribution`: logits for Discrete, means
followed by log standard deviations for Box.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from shoal.spaces import Discrete, Space

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """A family of distributions over one action space; stateless.

    Attributes:
        parameters: P, the numbers that say which member of the family it is.
    """

    @property
    def parameters(self) -> int:
        """P."""

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-density `[...]` of actions `[..., *act]` under parameters `[..., P]`."""

    def entropy(self, params: Tensor) -> Tensor:
        """Differential or Shannon entropy `[...]`, in nats."""

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`, in nats."""


class Categorical:
    """One of n actions, counted from 0; parameters are logits, of any offset."""

    def __init__(self, n: int) -> None:
        self._n = n

    @property
    def parameters(self) -> int:
        """P = n."""
        return self._n

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-probability `[...]` of int64 actions `[...]`."""
        flat = params.reshape(-1, self._n)  # the fused kernel, a third cheaper than a gather
        losses = functional.cross_entropy(flat, actions.reshape(-1), reduction="none")
        return losses.neg().view(actions.shape)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy `[...]`."""
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`."""
        log_p = params.log_softmax(-1)
        return (log_p.exp() * (log_p - other.log_softmax(-1))).sum(-1)


class DiagonalGaussian:
    """Independent normals over the flattened action; parameters are `mean | log_std`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._width = math.prod(shape)

    @property
    def parameters(self) -> int:
        """P = 2 * prod(shape)."""
        return 2 * self._width

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-density `[...]` of float actions `[..., *shape]`."""
        mean, log_std = params[..., : self._width], params[..., self._width :]
        flat = actions.reshape(mean.shape)
        scaled = (flat - mean) * (-log_std).exp()
        return -(0.5 * scaled.square() + log_std + _HALF_LOG_TAU).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy `[...]`."""
        return (params[..., self._width :] + (0.5 + _HALF_LOG_TAU)).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`."""
        mean, log_std = params[..., : self._width], params[..., self._width :]
        other_mean, other_log_std = other[..., : self._width], other[..., self._width :]
        gap = (mean - other_mean).square() + (2.0 * log_std).exp()
        return (other_log_std - log_std + 0.5 * gap * (-2.0 * other_log_std).exp() - 0.5).sum(-1)


def distribution_of(action: Space) -> Distribution:
    """The family that acts in a space."""
    if isinstance(action, Discrete):
        return Categorical(action.n)
    return DiagonalGaussian(action.shape)


def sampled_kl(log_ratio: Tensor) -> Tensor:
    """Estimates KL(new || old) from actions that the old policy sampled, without bias.

    E_old[r log r - (r - 1)] with r = new / old; every term is non-negative (Schulman 2020,
    "Approximating KL divergence").

    Args:
        log_ratio: `[...]`, log new(a) - log old(a) with a ~ old.

    Returns:
        A scalar, in nats.
    """
    ratio = log_ratio.exp()
    return torch.mean(ratio * log_ratio - (ratio - 1.0))
