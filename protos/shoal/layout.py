"""How observations and actions of a space lie in the arrays of chunks and of policy graphs.

A space that is a leaf gives one array in its own dtype and shape. A Dict or Tuple is *packed*: its
leaves lie one after another, each in its own dtype, in one row of bytes, so that images stay uint8
beside floats; a policy graph takes one input for each leaf. Actions of a Dict or Tuple are one flat
vector of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from shoal.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, parts
from shoal.tensors import Array

NoiseKind = Literal["gumbel", "normal"]
_BINARY_VALUES = 2
_KNOWN_SPACES: Final = 64
"""Whose layouts are remembered: every chunk that comes in is held against the same one."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One leaf of an observation space.

    Attributes:
        path: Keys and places from the root; empty when the space is a leaf.
        space: The leaf.
        dtype: Of its array, little-endian: a Box's own, int64 for Discrete and MultiDiscrete
            (counted from 0), int8 for MultiBinary.
        shape: Of its array.
        offset: Bytes before it in a packed row.
    """

    path: str
    space: Leaf
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one observation of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def input_name(self, base: str) -> str:
        """Name of the graph input that takes it: `observation`, or `observation.arm.0`."""
        return f"{base}.{self.path}" if self.path else base


@dataclass(frozen=True, slots=True, eq=False)
class ObservationLayout:
    """How observations lie in a chunk: `[..., *shape]` of `dtype`.

    Attributes:
        fields: The leaves, in order.
        packed: Whether `shape` is a row of bytes that holds several leaves.
        dtype: Of the array; uint8 when packed.
        shape: Of one observation in the array.

    >>> layout = ObservationLayout.of(spec.observation)
    >>> columns = np.empty((steps, envs, *layout.shape), layout.dtype)
    >>> layout.unpack(columns)["arm.0"]        # [steps, envs, *shape of that leaf]
    """

    fields: tuple[Field, ...]
    packed: bool
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @staticmethod
    def of(space: Space) -> ObservationLayout:
        """The layout of an observation space.

        Raises:
            WireError: It is nested too deep or has too many leaves.
        """
        return _observation_layout(space)

    def unpack(self, observations: Array) -> dict[str, Array]:
        """The leaves of observations `[..., *shape]`, by path: each `[..., *leaf]`.

        Copies when packed; else the array itself under the path "".
        """
        if not self.packed:
            return {self.fields[0].path: observations}
        lead = observations.shape[:-1]
        found: dict[str, Array] = {}
        for field in self.fields:
            end = field.offset + field.size_bytes
            raw = np.ascontiguousarray(observations[..., field.offset : end])
            found[field.path] = raw.view(field.dtype).reshape((*lead, *field.shape))
        return found

    def pack(self, leaves: Mapping[str, Array]) -> Array:
        """The inverse of `unpack`: `[..., *shape]` from leaves that share their leading axes."""
        if not self.packed:
            return leaves[self.fields[0].path]
        first = self.fields[0]
        lead = leaves[first.path].shape[: leaves[first.path].ndim - len(first.shape)]
        rows = np.empty((*lead, *self.shape), np.uint8)
        for field in self.fields:
            flat = leaves[field.path].astype(field.dtype, copy=False)
            flat = np.ascontiguousarray(flat).reshape((*lead, math.prod(field.shape)))
            rows[..., field.offset : field.offset + field.size_bytes] = flat.view(np.uint8)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One leaf of an action space.

    Attributes:
        path: Keys and places from the root; empty when the space is a leaf.
        space: The leaf.
        values: For each discrete element how many values it has; empty for Box.
        start: Numbers of the flat action before it.
        size: Numbers of the flat action that are its own.
        noise_start: Columns of the noise before it.
        noise_width: Columns of the noise that are its own: one a logit, or one a number of a Box.
    """

    path: str
    space: Leaf
    values: tuple[int, ...]
    start: int
    size: int
    noise_start: int
    noise_width: int

    @property
    def noise(self) -> NoiseKind:
        """What samples it: Gumbel-max for discrete elements, a unit normal for Box."""
        return "gumbel" if self.values else "normal"


@dataclass(frozen=True, slots=True, eq=False)
class ActionLayout:
    """How actions lie in a chunk, `[..., *shape]` of `dtype`, and the noise that samples them.

    Attributes:
        choices: The leaves, in order.
        dtype: int64 when every leaf is discrete (counted from 0), else float32.
        shape: Of one action in the array: a leaf's own, or `[numbers]` of a Dict or Tuple.
        noise_width: Columns of the noise, all leaves.
    """

    choices: tuple[Choice, ...]
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    noise_width: int

    @staticmethod
    def of(space: Space) -> ActionLayout:
        """The layout of an action space.

        Raises:
            WireError: It is nested too deep or has too many leaves.
        """
        return _action_layout(space)

    @property
    def size(self) -> int:
        """Numbers in one action."""
        return math.prod(self.shape)

    @property
    def discrete(self) -> bool:
        """Whether every leaf is."""
        return self.dtype.kind == "i"


@lru_cache(_KNOWN_SPACES)
def _observation_layout(space: Space) -> ObservationLayout:
    fields: list[Field] = []
    offset = 0
    for part in parts(space):
        dtype, shape = _leaf_array(part.space)
        fields.append(Field(part.path, part.space, dtype, shape, offset))
        offset += fields[-1].size_bytes
    single = len(fields) == 1 and not fields[0].path
    return ObservationLayout(
        tuple(fields),
        packed=not single,
        dtype=fields[0].dtype if single else np.dtype(np.uint8),
        shape=fields[0].shape if single else (offset,),
    )


@lru_cache(_KNOWN_SPACES)
def _action_layout(space: Space) -> ActionLayout:
    choices: list[Choice] = []
    start = noise_start = 0
    for part in parts(space):
        values = _values(part.space)
        size = len(values) or math.prod(_leaf_array(part.space)[1])
        width = sum(values) if values else size
        choices.append(Choice(part.path, part.space, values, start, size, noise_start, width))
        start += size
        noise_start += width
    discrete = all(choice.values for choice in choices)
    single = len(choices) == 1 and not choices[0].path
    return ActionLayout(
        tuple(choices),
        dtype=np.dtype(np.int64) if discrete else np.dtype(np.float32),
        shape=_leaf_array(choices[0].space)[1] if single else (start,),
        noise_width=noise_start,
    )


def _leaf_array(space: Leaf) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    match space:
        case Box():
            return space.dtype.newbyteorder("<"), space.shape
        case MultiBinary():
            return np.dtype(np.int8), space.shape
        case Discrete():
            return np.dtype("<i8"), ()
        case MultiDiscrete():
            return np.dtype("<i8"), space.shape


def _values(space: Leaf) -> tuple[int, ...]:
    match space:
        case Discrete():
            return (space.n,)
        case MultiDiscrete():
            return tuple(space.nvec.ravel().tolist())
        case MultiBinary():
            return (_BINARY_VALUES,) * math.prod(space.shape)
        case Box():
            return ()
