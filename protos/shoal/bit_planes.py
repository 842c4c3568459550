"""Small differences of integers as streams of bytes that compress well, and back.

Most elements do not change between two versions, and most of those that do go up or down by 1.
Which ones do is told by a plane of bits, or by the gaps between them: a Huffman coder of bytes
brings the plane near its entropy where many change, and the gaps where few do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Unsigned = NDArray[np.unsignedinteger[Any]]
_BITS: Final = 8
_UP, _DOWN = 1, 255  # one step, modulo 256
_LONG: Final = 255  # a gap goes on


class Reader(Protocol):
    """Gives streams in order; `shoal.streams.StreamReader` is one."""

    def take(self, size: int) -> Bytes:
        """The next one, uint8 `[size]`."""

    def take_bytes(self, size: int) -> bytes:
        """The same as bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What differs between two arrays uint8 `[n]`.

    Attributes:
        count: n.
        places: Which elements differ, ascending `[k]`.
        steps: uint8 `[k]`, by how much these go up, modulo 256; never 0.
    """

    count: int
    places: Places
    steps: Bytes

    @classmethod
    def between(cls, base: Bytes, target: Bytes) -> Self:
        """From one array to another of its size."""
        steps = target - base
        places = np.flatnonzero(steps != 0)  # of bools it is four times as fast
        return cls(len(base), places, steps[places])

    @property
    def density(self) -> float:
        """Part of the elements that differ, 0 to 1."""
        return len(self.places) / max(1, self.count)

    def plane(self) -> bytes:
        """Which elements differ, in `n / 8` bytes."""
        changed = np.zeros(self.count, np.bool_)
        changed[self.places] = True
        return np.packbits(changed).tobytes()

    def gaps(self) -> bytes:
        """The same: how many do not before each that does."""
        gaps = np.diff(self.places, prepend=-1) - 1
        ends = np.cumsum(gaps // _LONG + 1)
        out = np.full(ends[-1] if len(ends) else 0, _LONG, np.uint8)
        out[ends - 1] = gaps % _LONG
        return out.tobytes()

    def kinds(self) -> list[bytes]:
        """Bits: which of the k go by more than 1 `[k]`; whether the others go down `[k - m]`.

        Then bytes: the steps of the m that do, in zigzag `[m]`.
        """
        large = (self.steps != _UP) & (self.steps != _DOWN)
        return [
            np.packbits(large).tobytes(),
            np.packbits(self.steps[~large] == _DOWN).tobytes(),
            zigzag(self.steps[large]).tobytes(),
        ]


def read_plane(count: int, reader: Reader) -> Places:
    """Which of `count` elements differ, as `Steps.plane` told it: ascending `[k]`.

    Raises:
        WireError: What the reader raises for a stream of a wrong size.
    """
    return np.flatnonzero(_take_bits(reader, count))


def read_gaps(count: int, size: int, reader: Reader) -> Places:
    """Which of `count` elements differ, as `Steps.gaps` told it in `size` bytes: ascending `[k]`.

    Raises:
        WireError: They go beyond the end, or what the reader raises.
    """
    if size > count + count // _LONG:
        raise WireError(f"gaps: {size} bytes for {count} elements")
    gaps = reader.take(size)
    if size and gaps[-1] == _LONG:
        raise WireError("gaps: the last one does not end")
    places: Places = np.cumsum(gaps, dtype=np.int64)
    if size and gaps.max() == _LONG:
        places = places[gaps != _LONG]
    places += np.arange(len(places))
    if len(places) and places[-1] >= count:
        raise WireError(f"gaps: they go beyond {count} elements")
    return places


def apply_kinds(base: Bytes, places: Places, reader: Reader) -> Bytes:
    """The array `[n]` that `Steps.between` was given as its target.

    Args:
        base: uint8 `[n]`, what it was given as its base.
        places: Which elements differ, `[k]`.
        reader: Gives what `Steps.kinds` told.

    Raises:
        WireError: What the reader raises for a stream of a wrong size.
    """
    large = _take_bits(reader, len(places))
    down = _take_bits(reader, len(large) - int(np.count_nonzero(large)))
    steps = _UP - 2 * down.view(np.uint8)  # of uint8: 1 less 2 is 255, one step down
    if len(steps) < len(large):
        small, steps = steps, np.empty(len(large), np.uint8)
        steps[~large] = small
        steps[large] = unzigzag(reader.take(len(large) - len(small)))
    else:
        reader.take(0)
    target = np.zeros_like(base)
    target[places] = steps
    target += base  # a third of what it takes to read, add and write at the places alone
    return target


def split_bytes(values: Unsigned) -> list[bytes]:
    """A stream for each byte of an element `[n]`, the lowest first."""
    width = values.dtype.itemsize
    columns = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return [each.tobytes() for each in columns.view(np.uint8).reshape(-1, width).T]


def join_bytes(count: int, dtype: np.dtype[Any], reader: Reader) -> Unsigned:
    """The values `[count]` of an unsigned dtype that `split_bytes` was given.

    Raises:
        WireError: What the reader raises for a stream of a wrong size.
    """
    width = dtype.itemsize
    streams = b"".join([reader.take_bytes(count) for _ in range(width)])
    columns = np.frombuffer(streams, np.uint8).reshape(width, count).T.copy()
    values: Unsigned = columns.reshape(-1).view(dtype.newbyteorder("<"))
    return values


def zigzag(steps: Unsigned) -> Unsigned:
    """Signed steps, modulo their bits, as unsigned numbers: 0, -1, 1, -2, ... become 0, 1, 2, 3."""
    signed = steps.view(f"i{steps.dtype.itemsize}")
    coded: Unsigned = ((signed << 1) ^ (signed >> (_BITS * steps.dtype.itemsize - 1))).view(
        steps.dtype
    )
    return coded


def unzigzag(coded: Unsigned) -> Unsigned:
    """The inverse of `zigzag`."""
    one = coded.dtype.type(1)
    steps: Unsigned = coded & one
    np.negative(steps, out=steps)
    steps ^= coded >> one
    return steps


def _take_bits(reader: Reader, count: int) -> NDArray[np.bool_]:
    packed = reader.take(-(-count // _BITS))
    bits: NDArray[np.bool_] = np.unpackbits(packed, count=count).view(np.bool_)
    return bits
