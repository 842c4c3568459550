"""CRC-32, as the frames of all messages carry it: the one place that knows what computes it.

It is `zlib`'s; the sums of parts are joined here, as Python does not offer what `zlib` has for it.
Where `isal` is installed, as it is on a learner, that sums up large messages in a tenth of the
time. It is imported with the first of them.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_LARGE: Final = 16 * 1024
"""Bytes from which on it is worth the import; a device reads nothing of the kind."""


def crc32_joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of bytes that are followed by others, from those of either.

    A byte of zeros after a message multiplies its sum by x^8, modulo the polynomial: a linear map
    of 32 bits. Its powers of two are kept (Adler's `crc32_combine`).

    Args:
        first: Of the bytes.
        second: Of those that follow.
        length: How many follow.
    """
    power = 0
    while length:
        if length & 1:
            low, second_byte, third, high = _zeros(power)
            first = (
                low[first & 255]
                ^ second_byte[first >> 8 & 255]
                ^ third[first >> 16 & 255]
                ^ high[first >> 24]
            )
        length >>= 1
        power += 1
    return first ^ second


def crc32_of_received(payload: bytes | memoryview) -> int:
    """The CRC-32 of what came in."""
    return (_fastest() if len(payload) >= _LARGE else zlib.crc32)(payload)


@lru_cache(64)
def _zeros(power: int) -> tuple[array[int], ...]:
    """What 2**power bytes of zeros make of each of the four bytes of a sum, the lowest first."""
    if power == 0:
        images = [zlib.crc32(b"\0", 1 << bit) ^ zlib.crc32(b"\0") for bit in range(32)]
    else:
        half = 1 << (power - 1)
        images = [crc32_joined(crc32_joined(1 << bit, 0, half), 0, half) for bit in range(32)]
    return tuple(_sums(images[at : at + 8]) for at in range(0, 32, 8))


def _sums(images: list[int]) -> array[int]:
    """For each byte, the sum of the images of its bits."""
    sums = [0]
    for image in images:
        sums += [image ^ other for other in sums]
    return array("L", sums)


@lru_cache(1)
def _fastest() -> Callable[[bytes | memoryview], int]:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - a learner's alone
    except ImportError:
        return zlib.crc32
    fast: Callable[[bytes | memoryview], int] = isal_zlib.crc32
    return fast
