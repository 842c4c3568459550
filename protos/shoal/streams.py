"""Streams of bytes of sizes that the reader knows: as they are, shorter by zstd, or left out.

Nothing is allocated but what the reader asks for: a stream that says another size is refused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal import zstd
from shoal.errors import WireError

Bytes = NDArray[np.uint8]
_ZSTD_LEVEL: Final = 3
_FEWEST_BYTES: Final = 12  # a zstd frame of anything takes more


class Packed(NamedTuple):
    """A stream as it is written.

    Attributes:
        data: What is written.
        cost: How many bytes that takes in the end.
    """

    data: bytes
    cost: int


class Packer(Protocol):
    """Says how streams are written."""

    def __call__(self, raw: bytes, *, noise: bool = False) -> Packed:
        """One stream; see `pack`."""


def pack_each(raw: bytes, *, noise: bool = False) -> Packed:
    """Each stream by itself."""
    data = pack(raw, noise=noise)
    return Packed(data, len(data))


class LeaveRaw:
    """Streams as they are, for somebody who makes a frame of all of them."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._scale = zstd.BlockScale()

    def __call__(self, raw: bytes, *, noise: bool = False) -> Packed:  # noqa: ARG002 - all alike
        """One stream, left out where it is all zeros."""
        if not raw.strip(b"\x00"):
            return Packed(b"", 0)
        size = len(raw)
        return Packed(raw, size if size < _FEWEST_BYTES else min(size, self._scale.weigh(raw)))


def pack(raw: bytes, *, noise: bool = False) -> bytes:
    """A stream as it travels: empty where it is all zeros, never longer than `raw`.

    Args:
        raw: The stream.
        noise: Whether its bytes are unequally frequent, and nothing else.
    """
    if not raw.strip(b"\x00"):
        return b""
    if len(raw) < _FEWEST_BYTES:
        return raw
    packed = zstd.compress_noise(raw) if noise else zstd.compress(raw, level=_ZSTD_LEVEL)
    return packed if len(packed) < len(raw) else raw


def unpack(data: bytes, size: int) -> bytes:
    """The `size` bytes that `pack` was given.

    Raises:
        WireError: It is not a stream of that size.
    """
    if not data:
        return bytes(size)
    if len(data) == size:
        return data
    try:
        said = zstd.content_size(data)
        if said != size:
            raise WireError(f"stream: it says {said} bytes, and must have {size}")
        return zstd.decompress(data, size)
    except (zstd.ZstdError, MemoryError) as error:
        raise WireError(f"stream: cannot be decompressed ({error})") from error


class StreamReader:
    """Takes one stream after the other.

    reader = StreamReader(data, [9, 0, 3])
    changed = reader.take(25)       # uint8 [25]
    reader.end()
    """

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        """Starts at the first.

        Args:
            data: The streams as they travelled, one after the other.
            sizes: Bytes of each there.

        Raises:
            WireError: Sizes and data do not agree.
        """
        if sum(sizes) != len(data):
            raise WireError(f"streams: {sum(sizes)} bytes were said, there are {len(data)}")
        self._data = data
        self._sizes = iter(sizes)
        self._at = 0

    def take(self, size: int) -> Bytes:
        """The next one, uint8 `[size]`, read-only.

        Raises:
            WireError: There is none, or it is not of that size.
        """
        return np.frombuffer(self.take_bytes(size), np.uint8)

    def take_bytes(self, size: int) -> bytes:
        """The same as bytes."""
        return unpack(self._next(), size)

    def _next(self) -> bytes:
        length = next(self._sizes, None)
        if length is None:
            raise WireError("streams: one is missing")
        data = self._data[self._at : self._at + length]
        self._at += length
        return data

    def end(self) -> None:
        """Makes sure that all were taken.

        Raises:
            WireError: There are more.
        """
        if next(self._sizes, None) is not None:
            raise WireError("streams: there are more than were asked for")
