"""The action that is taken where no policy acts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ConfigError
from shoal.layout import ActionLayout, Choice
from shoal.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from shoal.tensors import Array

_SHOWN = 8


def safe_actions(space: Space, given: Sequence[float] | None, envs: int) -> Array:
    """The safe action for each environment, as a policy would give it: `[N, *shape]`.

    Args:
        space: the action space.
        given: numbers in the environment's own terms, leaf after leaf and in C order. None is the
            first value of what is discrete, and zero brought within the bounds of a Box.
        envs: N.

    Raises:
        ConfigError: it is not one of the space.
    """
    layout = ActionLayout.of(space)
    numbers = np.empty(layout.size, np.float64)
    if given is not None and len(given) != layout.size:
        one = isinstance(space, Discrete)
        wanted = f"one whole number {_range(layout.choices[0])}" if one else f"{layout.size}"
        raise ConfigError(f"actor.safe_action has {len(given)} values: give {wanted}")
    for choice in layout.choices:
        own = slice(choice.start, choice.start + choice.size)
        low, high = _bounds(choice)
        if given is None:
            numbers[own] = low if choice.values else np.clip(0.0, low, high)
        else:
            numbers[own] = given[own]
            _check(numbers[own], choice)
        if choice.values:
            numbers[own] -= low
    rows = np.broadcast_to(numbers.reshape(layout.shape), (envs, *layout.shape))
    return rows.astype(layout.dtype)


def own_terms(space: Space, action: Array) -> list[float]:
    """An action as a policy gives it, in the numbers that `safe_actions` takes."""
    layout = ActionLayout.of(space)
    numbers: list[float] = np.asarray(action).reshape(-1).tolist()
    for choice in layout.choices:
        if choice.values:
            for k, low in enumerate(_bounds(choice)[0].tolist(), start=choice.start):
                numbers[k] = int(numbers[k] + low)
    return numbers


def _check(numbers: NDArray[np.float64], choice: Choice) -> None:
    low, high = _bounds(choice)
    wrong = ~((low <= numbers) & (numbers <= high))  # NaN is wrong too
    if _whole(choice):
        wrong |= numbers != np.rint(numbers)
    if wrong.any():
        where = f" of {choice.path}" if choice.path else ""
        kind = "whole numbers" if _whole(choice) else "values"
        if choice.size == 1:
            kind = "one whole number" if _whole(choice) else "one value"
        said = ", ".join(f"{number:g}" for number in numbers[:_SHOWN])
        more = ", ..." if numbers.size > _SHOWN else ""
        raise ConfigError(
            f"actor.safe_action{where} is [{said}{more}]: give {kind} {_range(choice)}"
        )


def _range(choice: Choice) -> str:
    low, high = _bounds(choice)
    if choice.size == 1 and _whole(choice):
        return f"from {low[0]:g} to {high[0]:g}"
    more = ", ..." if choice.size > _SHOWN else ""
    lows, highs = (", ".join(f"{x:g}" for x in bound[:_SHOWN]) for bound in (low, high))
    return f"between [{lows}{more}] and [{highs}{more}]"


def _whole(choice: Choice) -> bool:
    return not (isinstance(choice.space, Box) and choice.space.dtype.kind == "f")


def _bounds(choice: Choice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lowest and highest of each number, in the environment's own terms."""
    match choice.space:
        case Box(low=low, high=high):
            pass
        case Discrete(n=n, start=start):
            low, high = np.array(start), np.array(start + n - 1)
        case MultiDiscrete(nvec=nvec, start=starts):
            low, high = starts, starts + nvec - 1
        case MultiBinary(shape=shape):
            low, high = np.zeros(math.prod(shape)), np.ones(math.prod(shape))
    return low.reshape(-1).astype(np.float64), high.reshape(-1).astype(np.float64)
