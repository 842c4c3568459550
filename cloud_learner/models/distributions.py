"""Action distributions: what a policy's outputs mean, with gradients.

The same parameters leave the policy graph as its output `distribution`: for each leaf of the action
space in order, the logits of its discrete elements one after another, or means followed by log
standard deviations. Those of an epsilon-greedy policy are its action values.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

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

    def mode(self, params: Tensor) -> Tensor:
        """The greedy action `[..., *act]`: what the policy graph gives for noise of zeros."""


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

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest action `[...]`."""
        return params.argmax(-1)


class MultiCategorical:
    """Independent categoricals side by side, for MultiDiscrete and MultiBinary actions."""

    def __init__(self, values: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Parameters are the logits of each element, one element after another.

        Args:
            values: How many values each element has, in C order.
            shape: Of one action.
        """
        self._values = list(values)
        self._shape = shape
        self._parts = [Categorical(n) for n in values]

    @property
    def parameters(self) -> int:
        """P = sum(values)."""
        return sum(self._values)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-probability `[...]` of int64 actions `[..., *shape]`."""
        flat = actions.reshape((*params.shape[:-1], len(self._values)))
        split = torch.split(params, self._values, -1)
        terms = [
            p.log_prob(x, flat[..., i])
            for i, (p, x) in enumerate(zip(self._parts, split, strict=True))
        ]
        return torch.stack(terms, -1).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy `[...]`."""
        split = torch.split(params, self._values, -1)
        terms = [p.entropy(x) for p, x in zip(self._parts, split, strict=True)]
        return torch.stack(terms, -1).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`."""
        split = zip(
            torch.split(params, self._values, -1), torch.split(other, self._values, -1), strict=True
        )
        terms = [part.kl(x, y) for part, (x, y) in zip(self._parts, split, strict=True)]
        return torch.stack(terms, -1).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest action `[..., *shape]`."""
        best = torch.stack([x.argmax(-1) for x in torch.split(params, self._values, -1)], -1)
        return best.reshape((*params.shape[:-1], *self._shape))


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

    def mode(self, params: Tensor) -> Tensor:
        """The mean `[..., *shape]`."""
        return params[..., : self._width].reshape((*params.shape[:-1], *self._shape))


class Product:
    """Independent distributions over the leaves of a Dict or Tuple; actions are flat vectors."""

    def __init__(self, parts: tuple[tuple[Distribution, int, bool], ...]) -> None:
        """Puts leaves side by side.

        Args:
            parts: For each leaf its distribution over a flat action, the numbers of the flat
                action that it takes, and whether these are whole.
        """
        self._parts = [part for part, _, _ in parts]
        self._sizes = [size for _, size, _ in parts]
        self._whole = [whole for _, _, whole in parts]
        self._widths = [part.parameters for part in self._parts]

    @property
    def parameters(self) -> int:
        """P, of all leaves."""
        return sum(self._widths)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Log-density `[...]` of flat actions `[..., numbers]`."""
        split = zip(
            self._parts,
            torch.split(params, self._widths, -1),
            torch.split(actions, self._sizes, -1),
            self._whole,
            strict=True,
        )
        terms = [
            part.log_prob(x, chosen.to(torch.int64) if whole else chosen)
            for part, x, chosen, whole in split
        ]
        return torch.stack(terms, -1).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy `[...]`: discrete leaves in nats, and differential ones, summed."""
        split = zip(self._parts, torch.split(params, self._widths, -1), strict=True)
        return torch.stack([part.entropy(x) for part, x in split], -1).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """KL(params || other) `[...]`."""
        split = zip(
            self._parts,
            torch.split(params, self._widths, -1),
            torch.split(other, self._widths, -1),
            strict=True,
        )
        return torch.stack([part.kl(x, y) for part, x, y in split], -1).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The greedy flat action `[..., numbers]`."""
        split = zip(self._parts, torch.split(params, self._widths, -1), strict=True)
        modes = [part.mode(x) for part, x in split]
        if all(self._whole):
            return torch.cat(modes, -1)
        return torch.cat([mode.to(torch.float32) for mode in modes], -1)


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
