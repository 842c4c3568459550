"""Observation and action spaces as both sides know them, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError
from shoal.tensors import DTYPES, MAX_AXES, MAX_TENSOR_BYTES, Array, decode_tensor, encode_tensor
from shoal.v1 import space_pb2 as pb

MAX_VALUES: Final = 1 << 20
"""Values that a discrete space, or all elements of one together, may have."""
MAX_DEPTH: Final = 8
"""How deep Dict and Tuple may be nested."""
MAX_PARTS: Final = 256
"""Leaves that a nested space may have."""
_SHOWN: Final = 80  # characters of a key, in messages


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays of one shape and dtype between two bounds (which may be infinite).

    Attributes:
        low: The lower bound of each element, in the space's own dtype and shape.
        high: The upper bound of each element.
    """

    low: Array
    high: Array

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or self.low.dtype != self.high.dtype:
            raise WireError("a box's bounds must have one shape and one dtype")
        if self.low.dtype.newbyteorder("<") not in DTYPES.values():
            raise WireError(
                f"a box of dtype {self.low.dtype} is not supported: cast it, observations with "
                "gymnasium.wrappers.DtypeObservation, actions with TransformAction"
            )
        if not self.low.size:
            raise WireError(
                f"a box of shape {self.shape} has no element: leave it out, or give it one"
            )
        if self.low.nbytes > MAX_TENSOR_BYTES:
            raise WireError(
                f"a box of shape {self.shape} has {self.low.nbytes} bytes, over "
                f"{MAX_TENSOR_BYTES}: make it smaller in the environment"
            )
        if np.isnan(self.low).any() or np.isnan(self.high).any():
            raise WireError(
                f"a box of shape {self.shape} has a bound that is NaN: use -inf and inf where "
                "there is none"
            )
        if (self.low > self.high).any():
            raise WireError(
                f"a box of shape {self.shape} has a lower bound above the upper one: nothing is "
                "in it"
            )

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of its elements."""
        return self.low.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element of the space."""
        return self.low.shape

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        little = self.dtype.newbyteorder("<")
        head = f"box {little.str} {self.shape} ".encode()
        return head + self.low.astype(little).tobytes() + self.high.astype(little).tobytes()


@dataclass(frozen=True, slots=True)
class Discrete:
    """The integers `start, ..., start + n - 1`. Policies and chunks count from 0."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_VALUES:
            raise WireError(
                f"a discrete space of {self.n} values is not supported: give it 1 to {MAX_VALUES}"
            )

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        return f"discrete {self.n} {self.start}".encode()


@dataclass(frozen=True, eq=False)
class MultiDiscrete:
    """Arrays of integers, each element with a range of its own. Policies and chunks count from 0.

    Attributes:
        nvec: int64, how many values each element has; of any shape.
        start: int64, the lowest value of each element.
    """

    nvec: NDArray[np.int64]
    start: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.nvec.dtype != np.int64 or self.start.dtype != np.int64:
            raise WireError("a multi-discrete space counts in int64")
        if self.nvec.shape != self.start.shape:
            raise WireError("a multi-discrete space has one start for each element")
        # The largest alone first: the sum of such numbers might overflow.
        if not self.nvec.size or self.nvec.min() < 1 or self.nvec.max() > MAX_VALUES:
            raise WireError(f"a multi-discrete space needs from 1 to {MAX_VALUES} values in each")
        if self.nvec.sum() > MAX_VALUES:
            raise WireError(
                f"a multi-discrete space of {self.nvec.sum()} values is over {MAX_VALUES}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element of the space."""
        return self.nvec.shape

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        numbers = self.nvec.astype("<i8").tobytes() + self.start.astype("<i8").tobytes()
        return f"multi_discrete {self.shape} ".encode() + numbers


@dataclass(frozen=True, slots=True)
class MultiBinary:
    """Arrays of 0 and 1.

    Attributes:
        shape: The shape of one element of the space.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        size = 1
        for axis in self.shape:
            size *= axis
        if not 1 <= size <= MAX_VALUES or min(self.shape, default=1) < 1:
            raise WireError(
                f"a multi-binary space of shape {self.shape} is not supported: give it 1 to "
                f"{MAX_VALUES} elements"
            )

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        return f"multi_binary {self.shape}".encode()


@dataclass(frozen=True, eq=False)
class Dict:
    """Named spaces, sorted by name.

    Attributes:
        items: Key and space of each.
    """

    items: tuple[tuple[str, Space], ...]

    def __post_init__(self) -> None:
        keys = [key for key, _ in self.items]
        if not keys or keys != sorted(set(keys)) or not all(keys):
            raise WireError(f"a dict space needs unique keys in order, not {keys}")

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        return b"dict " + _nested(*(x for k, s in self.items for x in (k.encode(), s.canonical())))


@dataclass(frozen=True, eq=False)
class Tuple:
    """Spaces side by side.

    Attributes:
        items: In order.
    """

    items: tuple[Space, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise WireError("a tuple space needs one space or more")

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        return b"tuple " + _nested(*(space.canonical() for space in self.items))


Leaf: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
Space: TypeAlias = Leaf | Dict | Tuple


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A leaf of a space.

    Attributes:
        path: Keys and places from the root: `arm.0`; empty when the space itself is the leaf.
        space: The leaf.
    """

    path: str
    space: Leaf


def parts(space: Space) -> tuple[Part, ...]:
    """The leaves of a space, depth first, in the order of keys and places.

    Raises:
        WireError: It is nested too deep, has too many leaves, or two with the same path.
    """
    found = tuple(_parts(space, "", 0))
    if len(found) > MAX_PARTS:
        raise WireError(f"a space of {len(found)} leaves; the limit is {MAX_PARTS}")
    if len({part.path for part in found}) < len(found):
        raise WireError("two leaves of a space have the same path: use keys without dots")
    return found


@dataclass(frozen=True, eq=False)
class EnvSpec:
    """What a device says of its environment at birth.

    Attributes:
        env_id: A gymnasium id or `module:attr`.
        reward_threshold: Mean episode return that counts as solved, if it has one.
        max_episode_steps: Environment steps after which it truncates, if it does.
    """

    env_id: str
    observation: Space
    action: Space
    reward_threshold: float | None = None
    max_episode_steps: int | None = None

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that are equal exactly when both spaces are."""
        return hashlib.sha256(
            _nested(self.observation.canonical(), self.action.canonical(), separator=b"\x00")
        ).digest()

    def to_pb(self) -> pb.EnvSpec:
        """As a message."""
        message = pb.EnvSpec(
            env_id=self.env_id,
            observation=_space_to_pb(self.observation),
            action=_space_to_pb(self.action),
        )
        if self.reward_threshold is not None:
            message.reward_threshold = self.reward_threshold
        if self.max_episode_steps is not None:
            message.max_episode_steps = self.max_episode_steps
        return message

    @classmethod
    def from_pb(cls, message: pb.EnvSpec) -> EnvSpec:
        """From a message.

        Raises:
            WireError: A space is missing, unknown, malformed, empty or too large; says which.
        """
        return cls(
            env_id=message.env_id,
            observation=_space_from_pb(message.observation, "observation"),
            action=_space_from_pb(message.action, "action"),
            reward_threshold=(
                message.reward_threshold if message.HasField("reward_threshold") else None
            ),
            max_episode_steps=(
                message.max_episode_steps if message.HasField("max_episode_steps") else None
            ),
        )


def unbounded(shape: tuple[int, ...], dtype: type[np.floating] = np.float32) -> Box:
    """A Box without bounds."""
    high: NDArray[np.floating] = np.full(shape, np.inf, dtype)
    return Box(-high, high)


def _nested(*canonicals: bytes, separator: bytes = b"") -> bytes:
    """Hashes of what is nested, so that no two structures give the same bytes."""
    return separator.join(hashlib.sha256(canonical).digest() for canonical in canonicals)


def _parts(space: Space, path: str, depth: int) -> Iterator[Part]:
    if depth > MAX_DEPTH:
        raise WireError(f"a space nested deeper than {MAX_DEPTH}")
    if isinstance(space, Dict):
        for key, item in space.items:
            yield from _parts(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(space, Tuple):
        for place, item in enumerate(space.items):
            yield from _parts(item, f"{path}.{place}" if path else str(place), depth + 1)
    else:
        yield Part(path, space)


def _space_to_pb(space: Space) -> pb.Space:
    match space:
        case Discrete():
            return pb.Space(discrete=pb.DiscreteSpace(n=space.n, start=space.start))
        case MultiDiscrete():
            nvec, start = encode_tensor("nvec", space.nvec), encode_tensor("start", space.start)
            return pb.Space(multi_discrete=pb.MultiDiscreteSpace(nvec=nvec, start=start))
        case MultiBinary():
            return pb.Space(multi_binary=pb.MultiBinarySpace(shape=space.shape))
        case Dict():
            named = [pb.NamedSpace(key=k, space=_space_to_pb(s)) for k, s in space.items]
            return pb.Space(dict=pb.DictSpace(items=named))
        case Tuple():
            return pb.Space(tuple=pb.TupleSpace(items=map(_space_to_pb, space.items)))
    low, high = encode_tensor("low", space.low), encode_tensor("high", space.high)
    return pb.Space(box=pb.BoxSpace(low=low, high=high))


def _space_from_pb(message: pb.Space, path: str, depth: int = 0) -> Space:
    if depth > MAX_DEPTH:
        raise WireError(f"a space nested deeper than {MAX_DEPTH}")
    nested: list[tuple[str, Space]] = []
    kind = message.WhichOneof("kind")
    if kind == "dict":
        for named in message.dict.items:
            below = f"{path}.{named.key[:_SHOWN]}"
            nested.append((named.key, _space_from_pb(named.space, below, depth + 1)))
    elif kind == "tuple":
        for place, item in enumerate(message.tuple.items):
            nested.append((str(place), _space_from_pb(item, f"{path}.{place}", depth + 1)))
    try:
        if kind == "dict":
            return Dict(tuple(nested))
        if kind == "tuple":
            return Tuple(tuple(space for _, space in nested))
        return _leaf_from_pb(message)
    except WireError as error:
        raise WireError(f"{path}: {error}") from error


def _leaf_from_pb(message: pb.Space) -> Leaf:
    match message.WhichOneof("kind"):
        case "discrete":
            return Discrete(message.discrete.n, message.discrete.start)
        case "box":
            return Box(decode_tensor(message.box.low), decode_tensor(message.box.high))
        case "multi_discrete":
            given = message.multi_discrete
            return MultiDiscrete(decode_tensor(given.nvec), decode_tensor(given.start))
        case "multi_binary":
            if len(message.multi_binary.shape) > MAX_AXES:
                raise WireError(f"a multi-binary space of {len(message.multi_binary.shape)} axes")
            return MultiBinary(tuple(message.multi_binary.shape))
    raise WireError("a space is missing or of a kind this program does not know; update it")
