"""Between gymnasium's spaces and Shoal's: what a space is, and numbers into actions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from shoal.errors import EnvironmentFailed, WireError
from shoal.layout import ActionLayout, Choice
from shoal.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    parts,
)
from shoal.tensors import Array

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"

GymSpace: TypeAlias = "gym.Space[object]"
Convert: TypeAlias = Callable[[Array], Sequence[object]]


def to_space(space: object) -> Space:
    """A gymnasium space as both sides know it.

    Raises:
        EnvironmentFailed: It, or a space in it, is not supported; says which and where.
    """
    try:
        found = _to_space(space, "")
        parts(found)
    except WireError as error:
        raise EnvironmentFailed(str(error)) from error
    return found


def _to_space(space: object, path: str) -> Space:
    try:
        return _known(space, path)
    except WireError as error:
        raise EnvironmentFailed(f"{path}: {error}" if path else str(error)) from error


def _known(space: object, path: str) -> Space:
    match space:
        case gym.Discrete():
            return Discrete(n=int(space.n), start=int(space.start))
        case gym.MultiDiscrete():
            return MultiDiscrete(space.nvec.astype(np.int64), space.start.astype(np.int64))
        case gym.MultiBinary():
            return MultiBinary(tuple(int(axis) for axis in space.shape))
        case gym.Box():
            return Box(low=space.low, high=space.high)
        case gym.Dict() if _named(space):
            items = sorted(space.spaces.items())
            return Dict(tuple((key, _to_space(item, below(path, key))) for key, item in items))
        case gym.Tuple():
            places = enumerate(space.spaces)
            return Tuple(tuple(_to_space(item, below(path, str(k))) for k, item in places))
    where = f"{path} in it, a {type(space).__name__}," if path else type(space).__name__
    said = " with a key that is no text" if isinstance(space, gym.Dict) else ""
    raise EnvironmentFailed(
        f"{where}{said} is not supported, only {SUPPORTED}; wrap the environment"
    )


def _named(space: gym.Dict) -> bool:
    return all(
        isinstance(key, str) and key for key in cast("Mapping[object, object]", space.spaces)
    )


def below(path: str, name: str) -> str:
    """The path of a space in another."""
    return f"{path}.{name}" if path else name


def converter(space: GymSpace) -> Convert:
    """How actions `[N, *shape]`, as a policy gives them, become what each environment takes.

    Numbers of a Box are clipped to its bounds here, those of an integer one rounded before. What
    comes out is fresh at each call: an environment may keep or change it.

    Args:
        space: A supported action space.
    """
    layout = ActionLayout.of(to_space(space))
    if layout.choices[0].path:
        return _nested(space, iter(layout.choices))
    return _leaf(space)


def _nested(space: GymSpace, choices: Iterator[Choice]) -> Convert:
    """Of flat actions `[N, numbers]`."""
    match space:
        case gym.Dict():
            keys = sorted(space.spaces)
            of_keys = [_nested(space.spaces[key], choices) for key in keys]

            def give_dicts(actions: Array) -> Sequence[object]:
                columns = [convert(actions) for convert in of_keys]
                return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]

            return give_dicts
        case gym.Tuple():
            of_places = [_nested(item, choices) for item in space.spaces]

            def give_tuples(actions: Array) -> Sequence[object]:
                return list(zip(*(convert(actions) for convert in of_places), strict=True))

            return give_tuples
    choice = next(choices)
    numbers, convert = slice(choice.start, choice.start + choice.size), _leaf(space)
    shape = cast("tuple[int, ...]", space.shape)
    dtype = np.int64 if choice.values else np.float32

    def give(actions: Array) -> Sequence[object]:
        own = actions[:, numbers].reshape((len(actions), *shape))
        return convert(own.astype(dtype, copy=False))

    return give


def _leaf(space: GymSpace) -> Convert:
    """Of actions `[N, *leaf]`."""
    if isinstance(space, gym.Discrete):
        first = int(space.start)
        if first == 0:
            return lambda actions: cast("list[object]", actions.tolist())
        return lambda actions: cast("list[object]", (actions + first).tolist())
    dtype = cast("np.dtype[np.generic]", space.dtype)
    if isinstance(space, gym.MultiDiscrete):
        start = space.start.astype(np.int64)
        return lambda actions: cast("Sequence[object]", (actions + start).astype(dtype))
    if isinstance(space, gym.MultiBinary):
        return lambda actions: cast("Sequence[object]", actions.astype(dtype))
    clip = _clipper(cast("gym.Box", space), dtype)
    if space.shape:
        return lambda actions: cast("Sequence[object]", clip(actions))
    # One by one an array of numbers gives numbers; a Box without axes takes arrays without axes.
    return lambda actions: [np.asarray(action) for action in clip(actions)]


def _clipper(box: gym.Box, dtype: np.dtype[np.generic]) -> Callable[[Array], Array]:
    low, high = box.low, box.high
    if dtype.kind == "f":
        if dtype == np.float16:  # whose range is below that of the numbers
            low, high = np.nan_to_num(low), np.nan_to_num(high)
        return lambda actions: np.clip(actions, low, high).astype(dtype)
    low, high = _inner(low, up=True), _inner(high, up=False)
    return lambda actions: np.clip(np.rint(actions), low, high).astype(dtype)


def _inner(bounds: Array, *, up: bool) -> NDArray[np.float64]:
    """Integer bounds as float64, never beyond: 2**63 - 1 would become 2**63, and overflow."""
    floats = bounds.astype(np.float64)
    flat, exact = floats.reshape(-1), [int(bound) for bound in bounds.reshape(-1).tolist()]
    for k, bound in enumerate(exact):
        if (int(flat[k]) < bound) if up else (int(flat[k]) > bound):
            flat[k] = np.nextafter(flat[k], np.inf if up else -np.inf)
    return floats
