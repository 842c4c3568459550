"""How large an `.xz` file is when unpacked, read from its index without unpacking.

Source: "The .xz File Format", version 1.2.0: a stream ends with an index of its blocks and a
footer of 12 bytes; streams may follow each other, with padding in multiples of 4 zero bytes.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO

from shoal.errors import FlashFailed

_FOOTER = struct.Struct("<II2s2s")
_HEADER_BYTES = 12
_MAX_INDEX_BYTES = 64 << 20


def xz_size(path: Path) -> int | None:
    """The size of what an `.xz` file holds [bytes].

    Returns:
        None when the index is larger than we care to read.

    Raises:
        FlashFailed: The file is cut short or damaged.
    """
    try:
        with path.open("rb") as file:
            return _streams_size(file, file.seek(0, 2))
    except (OSError, ValueError, IndexError) as error:
        raise FlashFailed(
            f"{path} is cut short or damaged ({error}): download the image again"
        ) from error


def _streams_size(file: IO[bytes], end: int) -> int | None:
    total = 0
    while end > 0:
        end = _without_padding(file, end)
        if end < 2 * _HEADER_BYTES:
            raise ValueError("no xz stream at its end")
        crc, backward, flags, magic = _FOOTER.unpack(_at(file, end - _FOOTER.size, _FOOTER.size))
        if magic != b"YZ" or zlib.crc32(struct.pack("<I", backward) + flags) != crc:
            raise ValueError("no xz footer at its end")
        index_bytes = (backward + 1) * 4
        if index_bytes > _MAX_INDEX_BYTES:
            return None
        index = _at(file, end - _FOOTER.size - index_bytes, index_bytes)
        if zlib.crc32(index[:-4]) != int.from_bytes(index[-4:], "little"):
            raise ValueError("its index is damaged")
        packed, unpacked = _sums(index)
        total += unpacked
        end -= _FOOTER.size + index_bytes + packed + _HEADER_BYTES
        if end < 0:
            raise ValueError("its index is damaged")
    return total


def _without_padding(file: IO[bytes], end: int) -> int:
    while end >= 4 and _at(file, end - 4, 4) == bytes(4):  # noqa: PLR2004 - the format's unit
        end -= 4
    return end


def _sums(index: bytes) -> tuple[int, int]:
    """Sizes of all blocks of an index, packed (with their padding) and unpacked [bytes]."""
    if index[0] != 0:
        raise ValueError("its index is damaged")
    count, at = _number(index, 1)
    packed = unpacked = 0
    for _ in range(count):
        block, at = _number(index, at)
        size, at = _number(index, at)
        packed += (block + 3) // 4 * 4
        unpacked += size
    return packed, unpacked


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A multibyte integer and where the next one starts."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 56:  # noqa: PLR2004 - nine bytes, says the format
            raise ValueError("its index is damaged")


def _at(file: IO[bytes], offset: int, count: int) -> bytes:
    if offset < 0:
        raise ValueError("it is too short")
    file.seek(offset)
    data = file.read(count)
    if len(data) != count:
        raise ValueError("it is too short")
    return data
