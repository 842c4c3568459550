"""What the outputs of a policy network are, for each way of acting and each action space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloud_learner.models.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    Product,
)
from cloud_learner.models.exploring import EpsilonGreedy, SquashedGaussian
from shoal.errors import ConfigError
from shoal.layout import ActionLayout, Choice
from shoal.spaces import Box, Discrete

Head = Literal["sample", "squash", "greedy"]
LOG_STD_BOUNDS: Final = (-5.0, 2.0)
HEADS: Final[tuple[Head, ...]] = ("sample", "squash", "greedy")


@dataclass(frozen=True, slots=True, eq=False)
class ActionRange:
    """Centre and half range `[numbers]` of an action's numbers; 0 and 1 where it has no bounds."""

    center: NDArray[np.float32]
    half: NDArray[np.float32]


def outputs_of(action: ActionLayout, head: Head) -> int:
    """How many outputs a policy network has: logits and means, or means and log deviations."""
    return 2 * action.size if head == "squash" else action.noise_width


def check_head(action: ActionLayout, head: Head) -> None:
    """Checks that a head can act in a space.

    Raises:
        ConfigError: It cannot; the message names an algorithm's way out.
    """
    first, alone = action.choices[0], len(action.choices) == 1
    if head == "greedy" and not (alone and isinstance(first.space, Discrete) and not first.path):
        raise ConfigError(
            f"an epsilon-greedy policy acts in one Discrete space, not in {_describe(action)}; "
            "use an algorithm that samples, such as APPO"
        )
    if head != "squash":
        return
    if not (alone and isinstance(first.space, Box)):
        raise ConfigError(
            f"a squashed policy acts in one Box, not in {_describe(action)}; "
            "use an algorithm that samples, such as APPO"
        )
    bounds = np.stack((first.space.low, first.space.high)).astype(np.float64)
    if not (np.isfinite(bounds).all() and (bounds[1] > bounds[0]).all()):
        raise ConfigError(
            "a squashed policy needs finite bounds, low < high, for every number of its action: "
            "give the Box bounds, or use an algorithm that samples, such as APPO"
        )


def distribution_of(action: ActionLayout, head: Head = "sample") -> Distribution:
    """The family of distributions of a head.

    Raises:
        ConfigError: The head cannot act in this space.
    """
    check_head(action, head)
    first = action.choices[0]
    if head == "greedy":
        return EpsilonGreedy(first.values[0])
    if head == "squash":
        span = action_range(action)
        center, half = torch.from_numpy(span.center), torch.from_numpy(span.half)
        return SquashedGaussian(center, half, action.shape)
    if len(action.choices) == 1 and not first.path:
        return _leaf_distribution(first, action.shape)
    return Product(
        tuple(
            (_leaf_distribution(choice, (choice.size,)), choice.size, bool(choice.values))
            for choice in action.choices
        )
    )


def action_range(action: ActionLayout) -> ActionRange:
    """The range of each number of the flat action; whole numbers are not scaled."""
    center = np.zeros(action.size, np.float32)
    half = np.ones(action.size, np.float32)
    for choice in action.choices:
        if not isinstance(choice.space, Box):
            continue
        low = choice.space.low.astype(np.float64).ravel()
        high = choice.space.high.astype(np.float64).ravel()
        bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
        own = slice(choice.start, choice.start + choice.size)
        with np.errstate(invalid="ignore"):  # infinities cancel where there are no bounds
            center[own] = np.where(bounded, (high + low) / 2.0, 0.0)
            half[own] = np.where(bounded, (high - low) / 2.0, 1.0)
    return ActionRange(center, half)


def output_range(action: ActionLayout) -> ActionRange:
    """Centre and scale `[outputs]` of a sampling head's outputs: those of means, 0 and 1 else."""
    span = action_range(action)
    center = np.zeros(action.noise_width, np.float32)
    half = np.ones(action.noise_width, np.float32)
    for choice in action.choices:
        if not choice.values:
            own = slice(choice.noise_start, choice.noise_start + choice.noise_width)
            numbers = slice(choice.start, choice.start + choice.size)
            center[own], half[own] = span.center[numbers], span.half[numbers]
    return ActionRange(center, half)


def box_numbers(action: ActionLayout) -> NDArray[np.int64]:
    """Which numbers of the flat action are those of a Box."""
    parts = [
        np.arange(choice.start, choice.start + choice.size)
        for choice in action.choices
        if not choice.values
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def sampling_params(action: ActionLayout, outputs: Tensor, log_std: Tensor | None) -> Tensor:
    """The parameters `[..., P]` of a sampling head.

    Args:
        action: The layout.
        outputs: `[..., outputs]`: logits and means.
        log_std: `[box numbers]`, in the units of the action.
    """
    if log_std is None:
        return outputs
    if len(action.choices) == 1:
        return torch.cat((outputs, log_std.expand_as(outputs)), -1)
    parts: list[Tensor] = []
    start = 0
    for choice in action.choices:
        own = outputs[..., choice.noise_start : choice.noise_start + choice.noise_width]
        parts.append(own)
        if not choice.values:
            parts.append(log_std[start : start + choice.size].expand_as(own))
            start += choice.size
    return torch.cat(parts, -1)


def squashing_params(outputs: Tensor) -> Tensor:
    """The parameters `[..., P]` of a squashing head: log deviations within bounds."""
    mean, log_std = outputs.chunk(2, -1)
    return torch.cat((mean, log_std.clamp(*LOG_STD_BOUNDS)), -1)


def _leaf_distribution(choice: Choice, shape: tuple[int, ...]) -> Distribution:
    if not choice.values:
        return DiagonalGaussian(shape)
    if len(choice.values) == 1 and shape == ():
        return Categorical(choice.values[0])
    return MultiCategorical(choice.values, shape)


def _describe(action: ActionLayout) -> str:
    kinds = ", ".join(type(choice.space).__name__ for choice in action.choices)
    return f"{kinds} of {math.prod(action.shape)} numbers"
