"""Observations as an environment returns them, written into rows as `shoal.layout` has them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_agent.environments.gym_spaces import below
from shoal.layout import Field, ObservationLayout
from shoal.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from shoal.tensors import Array

_BINARY_VALUES = 2


class Misfit(ValueError):
    """An observation is not one of its space. Says which leaf, what it is and should be."""


class Rows:
    """The observations of N environments in one array, a row each.

    rows = Rows(space, envs=8)
    rows.put(3, observation)      # as environment 3 returned it
    rows.array[3]                 # as a chunk holds it
    """

    def __init__(self, space: Space, envs: int) -> None:
        layout = ObservationLayout.of(space)
        self.array: Array = np.zeros((envs, *layout.shape), layout.dtype)
        self._puts = [
            _put(space, "", iter(_views(layout, self.array[n : n + 1]))) for n in range(envs)
        ]

    def put(self, n: int, observation: object) -> None:
        """Writes what environment n returned into row n.

        Raises:
            Misfit: It is not of the space: another shape, kind of number, key, or out of the range
                of a discrete one. The bounds of a Box are not looked at.
        """
        self._puts[n](observation)


def _views(layout: ObservationLayout, row: Array) -> Iterator[Array]:
    """A view of each leaf in a row `[1, *shape]`."""
    for field in layout.fields:
        yield leaf_view(layout, field, row).reshape(field.shape)


def leaf_view(layout: ObservationLayout, field: Field, rows: Array) -> Array:
    """A leaf's `[N, *leaf]` in rows `[N, *shape]`: never a copy, and perhaps not aligned."""
    if not layout.packed:
        return rows
    taken = rows[:, field.offset : field.offset + field.size_bytes].view(field.dtype)
    return taken.reshape((len(rows), *field.shape))


def flat(space: Space, observation: object) -> Iterator[object]:
    """The leaves of an observation of the space, in the order of its layout."""
    match space:
        case Dict(items=items):
            for key, item in items:
                yield from flat(item, observation[key])  # type: ignore[index] # it is of the space
        case Tuple(items=places):
            for k, item in enumerate(places):
                yield from flat(item, observation[k])  # type: ignore[index] # likewise
        case _:
            yield observation


def _put(space: Space, path: str, views: Iterator[Array]) -> Callable[[object], None]:
    match space:
        case Dict():
            return _put_dict({k: _put(s, below(path, k), views) for k, s in space.items}, path)
        case Tuple():
            places = enumerate(space.items)
            return _put_tuple([_put(s, below(path, str(k)), views) for k, s in places], path)
        case Discrete():
            return _put_discrete(space, path, next(views))
        case MultiDiscrete():
            return _put_counted(space.nvec, space.start, path, next(views))
        case MultiBinary():
            twos = np.full(space.shape, _BINARY_VALUES, np.int64)
            return _put_counted(twos, np.zeros_like(twos), path, next(views))
        case Box():
            return _put_box(path, next(views))


def _put_dict(puts: Mapping[str, Callable[[object], None]], path: str) -> Callable[[object], None]:
    def put(observation: object) -> None:
        if not isinstance(observation, Mapping) or observation.keys() != puts.keys():
            have = (
                f"a dict of {sorted(map(str, observation))}"
                if isinstance(observation, Mapping)
                else f"a {type(observation).__name__}"
            )
            raise _misfit(path, have, f"a dict of {list(puts)}")
        for key, put_item in puts.items():
            put_item(observation[key])

    return put


def _put_tuple(puts: Sequence[Callable[[object], None]], path: str) -> Callable[[object], None]:
    def put(observation: object) -> None:
        if not isinstance(observation, tuple | list) or len(observation) != len(puts):
            have = f"{len(observation)} values" if isinstance(observation, tuple | list) else ""
            raise _misfit(path, have or f"a {type(observation).__name__}", f"{len(puts)} values")
        for put_item, item in zip(puts, observation, strict=True):
            put_item(item)

    return put


def _put_discrete(space: Discrete, path: str, view: Array) -> Callable[[object], None]:
    start, n = space.start, space.n
    wanted = f"a whole number from {start} to {start + n - 1}"

    def put(observation: object) -> None:
        try:
            value = operator.index(observation) - start  # type: ignore[arg-type] # or TypeError
        except TypeError:
            raise _misfit(path, _kind(observation), wanted) from None
        if not 0 <= value < n:
            raise _misfit(path, str(value + start), wanted)
        view[...] = value

    return put


def _put_counted(
    nvec: NDArray[np.int64], start: NDArray[np.int64], path: str, view: Array
) -> Callable[[object], None]:
    wanted = f"whole numbers{list(nvec.shape)}"

    def put(observation: object) -> None:
        array = _array(observation, path, wanted)
        if array.shape != nvec.shape or not np.can_cast(array.dtype, np.int64, "same_kind"):
            raise _misfit(path, _kind(array), wanted)
        counted = array.astype(np.int64) - start
        outside = (counted < 0) | (counted >= nvec)
        if outside.any():
            low, high = start[outside][0], (start + nvec - 1)[outside][0]
            raise _misfit(path, f"{array[outside][0]} in one place", f"{low} to {high} there")
        view[...] = counted

    return put


def _put_box(path: str, view: Array) -> Callable[[object], None]:
    shape, dtype = view.shape, view.dtype
    wanted = f"{dtype}{list(shape)}"

    def put(observation: object) -> None:
        array = _array(observation, path, wanted)
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise _misfit(path, _kind(array), wanted)
        view[...] = array

    return put


def _array(observation: object, path: str, wanted: str) -> Array:
    try:
        return np.asarray(observation)
    except ValueError:  # lists of unequal lengths
        raise _misfit(path, "no array", wanted) from None


def _kind(observation: object) -> str:
    if isinstance(observation, np.ndarray):
        return f"{observation.dtype}{list(observation.shape)}"
    return f"a {type(observation).__name__}"


def _misfit(path: str, have: str, wanted: str) -> Misfit:
    return Misfit(f"{path}{': ' if path else ''}{have}, its observation space says {wanted}")
