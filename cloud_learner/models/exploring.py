"""The families of off-policy algorithms: a Gaussian squashed into bounds, and epsilon-greedy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

_LOG_2: Final = math.log(2.0)
_HALF_LOG_TAU: Final = 0.5 * math.log(2.0 * math.pi)
_INSIDE: Final = 1.0 - 1e-6  # an action at its very bound has no finite pre-image
LOG_NEVER: Final = -69.0
"""The log-probability of what an epsilon of 0 never does: finite, about log 1e-30."""
FAR: Final = 1e30
"""A threshold no noise reaches, and its negative one that all noise does."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Actions with their log-densities, both with gradients to the parameters.

    Attributes:
        action: `[..., *act]`.
        log_prob: `[...]`.
    """

    action: Tensor
    log_prob: Tensor


class SquashedGaussian:
    """center + half * tanh(u) with u normal, over a bounded Box (Haarnoja et al. 2018).

    Parameters are `mean | log_std` of u. The log-density has the exact Jacobian,
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) (their appendix C, in a stable form).
    """

    def __init__(self, center: Tensor, half: Tensor, shape: tuple[int, ...]) -> None:
        """Takes the bounds.

        Args:
            center: float32 `[A]`.
            half: float32 `[A]`, half the width between the bounds.
            shape: Of one action; A = prod(shape).
        """
        self.center = center
        self.half = half
        self._shape = shape
        self._width = math.prod(shape)
        self._log_half = float(half.double().log().sum())

    @property
    def parameters(self) -> int:
        """P = 2 * prod(shape)."""
        return 2 * self._width

    def rsample(self, params: Tensor, noise: Tensor) -> Sampled:
        """Actions from unit normal noise `[..., A]`, as the policy graph makes them."""
        mean, log_std = params.chunk(2, -1)
        inner = mean + log_std.exp() * noise
        density = -(0.5 * noise.square() + log_std + _HALF_LOG_TAU).sum(-1)
        action = self._squash(inner)
        return Sampled(action, density - self._log_jacobian(inner))

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-density `[...]` of actions `[..., *shape]` within the bounds."""
        mean, log_std = params[..., : self._width], params[..., self._width :]
        unit = (actions.reshape(mean.shape) - self.center) / self.half
        inner = unit.clamp(-_INSIDE, _INSIDE).atanh()
        scaled = (inner - mean) * (-log_std).exp()
        density = -(0.5 * scaled.square() + log_std + _HALF_LOG_TAU).sum(-1)
        return density - self._log_jacobian(inner)

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy `[...]`, estimated at the mean; exact as the deviation goes to 0.

        There is no closed form. E[log |d action / d u|] is taken at u = mean, so it is an upper
        bound wherever the Jacobian is concave, which it is everywhere.
        """
        mean, log_std = params[..., : self._width], params[..., self._width :]
        return (log_std + (0.5 + _HALF_LOG_TAU)).sum(-1) + self._log_jacobian(mean)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`: that of the Gaussians, as squashing is one-to-one."""
        mean, log_std = params[..., : self._width], params[..., self._width :]
        other_mean, other_log_std = other[..., : self._width], other[..., self._width :]
        gap = (mean - other_mean).square() + (2.0 * log_std).exp()
        return (other_log_std - log_std + 0.5 * gap * (-2.0 * other_log_std).exp() - 0.5).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The squashed mean `[..., *shape]`."""
        return self._squash(params[..., : self._width])

    def _squash(self, inner: Tensor) -> Tensor:
        flat = torch.addcmul(self.center, self.half, inner.tanh())
        return flat.reshape((*inner.shape[:-1], *self._shape))

    def _log_jacobian(self, inner: Tensor) -> Tensor:
        terms = 2.0 * (_LOG_2 - inner - functional.softplus(-2.0 * inner))
        return terms.sum(-1) + self._log_half


class EpsilonGreedy:
    """The best of n actions, or with probability epsilon any of them; parameters are values.

    Attributes:
        epsilon: 0 to 1; whoever trains sets it.
    """

    def __init__(self, n: int, epsilon: float = 0.0) -> None:
        self._n = n
        self.epsilon = epsilon

    @property
    def parameters(self) -> int:
        """P = n."""
        return self._n

    @property
    def log_greedy(self) -> float:
        """Log-probability of the best action."""
        return math.log(max(self.epsilon / self._n + 1.0 - self.epsilon, math.exp(LOG_NEVER)))

    @property
    def log_other(self) -> float:
        """Log-probability of each other action."""
        share = self.epsilon / self._n
        return max(math.log(share), LOG_NEVER) if share > 0.0 else LOG_NEVER

    @property
    def threshold(self) -> float:
        """The largest of n standard Gumbels is above it with probability epsilon.

        It has the distribution exp(-n exp(-x)), and is independent of which one it is, so the same
        noise says whether to explore and what.
        """
        if self.epsilon <= 0.0 or self.epsilon >= 1.0:
            return FAR if self.epsilon <= 0.0 else -FAR
        return math.log(self._n) - math.log(-math.log1p(-self.epsilon))

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-probability `[...]` of int64 actions `[...]`."""
        greedy = actions == params.argmax(-1)
        return torch.where(greedy, self.log_greedy, self.log_other).to(params.dtype)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy `[...]`, the same everywhere."""
        return params.new_full(params.shape[:-1], self._term() + self._term(other=True))

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`: 0 where both prefer the same action."""
        apart = params.argmax(-1) != other.argmax(-1)
        p, q = math.exp(self.log_greedy), math.exp(self.log_other)
        gap = (p - q) * (self.log_greedy - self.log_other)
        return torch.where(apart, gap, 0.0).to(params.dtype)

    def mode(self, params: Tensor) -> Tensor:
        """The best action `[...]`."""
        return params.argmax(-1)

    def _term(self, *, other: bool = False) -> float:
        log_p = self.log_other if other else self.log_greedy
        count = self._n - 1 if other else 1
        return -count * math.exp(log_p) * log_p
