"""CRC-32, as the frames of all messages carry it: the one place that knows what computes it.

It is `zlib`'s. Where `isal` is installed, as it is on a learner, that sums up large messages in a
tenth of the time. It is imported with the first of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_LARGE: Final = 16 * 1024
"""Bytes from which on it is worth the import; a device reads nothing of the kind."""


def crc32_of_received(payload: bytes | memoryview) -> int:
    """The CRC-32 of what came in."""
    return (_fastest() if len(payload) >= _LARGE else zlib.crc32)(payload)


@lru_cache(1)
def _fastest() -> Callable[[bytes | memoryview], int]:
    try:
        from isal import isal_zlib  # noqa: PLC0415 - a learner's alone
    except ImportError:
        return zlib.crc32
    fast: Callable[[bytes | memoryview], int] = isal_zlib.crc32
    return fast
