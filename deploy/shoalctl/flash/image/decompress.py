"""xz, gzip and zstd as one: any number of members in a row, and a bounded amount at a time."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from shoal import zstd

READ_BYTES = 1 << 20
"""How much of a file is read, and of xz and gzip unpacked, at a time."""

_XZ_MEMORY_BYTES = 1 << 30
_ZSTD_WINDOW_LOG = 29  # 512 MiB


class Decompressor(Protocol):
    """What `lzma`, `zlib` and `zstd` are brought to here: bounded output."""

    @property
    def finished(self) -> bool:
        """Whether a member of the file came to its end."""
        ...

    @property
    def hungry(self) -> bool:
        """Whether it needs more of the file to say more."""
        ...

    @property
    def rest(self) -> bytes:
        """What followed the end of the member."""
        ...

    def feed(self, data: bytes) -> bytes:
        """At most `READ_BYTES` of the image."""
        ...


def unpacked(file: IO[bytes], make: Callable[[], Decompressor]) -> Iterator[bytes]:
    """Decompresses one member after the other, as `xz`, `gzip` and `zstd` all may hold several.

    Args:
        file: The file, at its beginning.
        make: The decompressor of one member.

    Raises:
        EOFError: The file is cut short or damaged.
        lzma.LZMAError: The same, or it wants more memory than we give.
        zlib.error: The same.
    """
    data = file.read(READ_BYTES)
    while data:
        member = make()
        while not member.finished:
            if member.hungry and not data:
                data = file.read(READ_BYTES)
                if not data:
                    raise EOFError("the file ends too early")
            fed, data = data, b""
            piece = member.feed(fed)
            if piece:
                yield piece
        data = member.rest or file.read(READ_BYTES)
        if isinstance(member, Xz | Gzip):
            data = _skip_zeros(file, data)  # padding between and behind members


def _skip_zeros(file: IO[bytes], data: bytes) -> bytes:
    while data and not (data := data.lstrip(b"\x00")):
        data = file.read(READ_BYTES)
    return data


class Xz:
    """One stream of xz."""

    def __init__(self) -> None:
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    @property
    def finished(self) -> bool:
        """Whether the member came to its end."""
        return self._decompressor.eof

    @property
    def hungry(self) -> bool:
        """Whether it needs more of the file to say more."""
        return self._decompressor.needs_input

    @property
    def rest(self) -> bytes:
        """What followed the end of the member."""
        return self._decompressor.unused_data

    def feed(self, data: bytes) -> bytes:
        """A bounded piece of the image."""
        return self._decompressor.decompress(data, READ_BYTES)


class Gzip:
    """One member of gzip."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def finished(self) -> bool:
        """Whether the member came to its end."""
        return self._decompressor.eof

    @property
    def hungry(self) -> bool:
        """Whether it needs more of the file to say more."""
        return not self._decompressor.unconsumed_tail

    @property
    def rest(self) -> bytes:
        """What followed the end of the member."""
        return self._decompressor.unused_data

    def feed(self, data: bytes) -> bytes:
        """A bounded piece of the image."""
        return self._decompressor.decompress(self._decompressor.unconsumed_tail + data, READ_BYTES)


class Zstd:
    """One frame of zstd."""

    def __init__(self) -> None:
        self._decompressor = zstd.decompressor(window_log=_ZSTD_WINDOW_LOG)

    @property
    def finished(self) -> bool:
        """Whether the member came to its end."""
        return bool(self._decompressor.eof)

    @property
    def hungry(self) -> bool:
        """Whether it needs more of the file to say more."""
        return bool(self._decompressor.needs_input)

    @property
    def rest(self) -> bytes:
        """What followed the end of the member."""
        return bytes(self._decompressor.unused_data)

    def feed(self, data: bytes) -> bytes:
        """A bounded piece of the image."""
        try:
            return bytes(self._decompressor.decompress(data, READ_BYTES))
        except zstd.ZstdError as error:
            raise EOFError(str(error)) from error
