"""Observation and action spaces as both sides know them, and their fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError
from shoal.tensors import DTYPES, Array, decode_tensor, encode_tensor
from shoal.v1 import space_pb2 as pb

NoiseKind = Literal["gumbel", "normal"]


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
            raise WireError(f"a box of dtype {self.low.dtype} is not supported")

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
        if not 1 <= self.n <= 1 << 20:
            raise WireError(f"a discrete space of {self.n} values is not supported")

    def canonical(self) -> bytes:
        """What its fingerprint is made of."""
        return f"discrete {self.n} {self.start}".encode()


Space = Box | Discrete


def noise_kind(action: Space) -> NoiseKind:
    """Which noise samples an action: Gumbel-max for Discrete, a unit normal for Box."""
    return "gumbel" if isinstance(action, Discrete) else "normal"


def width(space: Space) -> int:
    """Numbers it takes to parametrise or perturb one element: n, or the product of the shape."""
    if isinstance(space, Discrete):
        return space.n
    return int(np.prod(space.shape, dtype=np.int64))


def action_dtype(action: Space) -> np.dtype[np.generic]:
    """The dtype of actions in a chunk: int64 for Discrete, float32 for Box."""
    return np.dtype(np.int64) if isinstance(action, Discrete) else np.dtype(np.float32)


def action_shape(action: Space) -> tuple[int, ...]:
    """The shape of one action in a chunk."""
    return () if isinstance(action, Discrete) else action.shape


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
        parts = (self.observation.canonical(), self.action.canonical())
        return hashlib.sha256(b"\x00".join(hashlib.sha256(p).digest() for p in parts)).digest()

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
            WireError: A space is missing, unknown or malformed.
        """
        return cls(
            env_id=message.env_id,
            observation=_space_from_pb(message.observation),
            action=_space_from_pb(message.action),
            reward_threshold=(
                message.reward_threshold if message.HasField("reward_threshold") else None
            ),
            max_episode_steps=(
                message.max_episode_steps if message.HasField("max_episode_steps") else None
            ),
        )


def observation_box(spec: EnvSpec) -> Box:
    """The observation space, which must be a Box.

    Raises:
        WireError: It is another kind of space.
    """
    if not isinstance(spec.observation, Box):
        raise WireError(f"{spec.env_id}: observations must be a Box, this is {spec.observation}")
    return spec.observation


def _space_to_pb(space: Space) -> pb.Space:
    if isinstance(space, Discrete):
        return pb.Space(discrete=pb.DiscreteSpace(n=space.n, start=space.start))
    low, high = encode_tensor("low", space.low), encode_tensor("high", space.high)
    return pb.Space(box=pb.BoxSpace(low=low, high=high))


def _space_from_pb(message: pb.Space) -> Space:
    kind = message.WhichOneof("kind")
    if kind == "discrete":
        return Discrete(message.discrete.n, message.discrete.start)
    if kind == "box":
        return Box(decode_tensor(message.box.low), decode_tensor(message.box.high))
    raise WireError("a space is missing or of a kind this program does not know; update it")


def unbounded(shape: tuple[int, ...], dtype: type[np.floating] = np.float32) -> Box:
    """A Box without bounds."""
    high: NDArray[np.floating] = np.full(shape, np.inf, dtype)
    return Box(-high, high)
