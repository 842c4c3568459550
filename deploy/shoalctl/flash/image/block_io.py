"""What a flash asks of the operating system, so that a test can put faults in its way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import sys
from pathlib import Path
from typing import Protocol

ALIGNMENT_BYTES = 4096
"""What reads past the page cache must be a multiple of, on every disk we know."""

_BLKFLSBUF, _BLKRRPART, _BLKGETSIZE64 = 0x1261, 0x125F, 0x80081272
_DIRECT = getattr(os, "O_DIRECT", 0)


class BlockIo(Protocol):
    """Reads and writes at offsets. Real in `OsBlockIo`, faulty in the tests."""

    def open(self, path: Path, flags: int) -> int:
        """A new file descriptor."""
        ...

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Writes some of `data` at `offset` [bytes]; returns how much, which may be less."""
        ...

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fills some of `buffer` from `offset` [bytes]; returns how much, 0 at the end."""
        ...

    def sync(self, descriptor: int) -> None:
        """Returns when what was written survives a power cut."""
        ...

    def close(self, descriptor: int) -> None:
        """Closes a descriptor."""
        ...


class OsBlockIo:
    """The operating system itself."""

    def open(self, path: Path, flags: int) -> int:
        """A new file descriptor.

        Raises:
            OSError: It can't be opened so.
        """
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Writes some of `data` at `offset` [bytes]; returns how much, which may be less.

        Raises:
            OSError: The disk is full, gone or broken.
        """
        return os.pwrite(descriptor, data, offset)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fills some of `buffer` from `offset` [bytes]; returns how much, 0 at the end.

        Raises:
            OSError: The disk is gone or broken.
        """
        return os.preadv(descriptor, [buffer], offset)

    def sync(self, descriptor: int) -> None:
        """Returns when what was written survives a power cut.

        Raises:
            OSError: The disk is full, gone or broken.
        """
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Closes a descriptor.

        Raises:
            OSError: What was written last could not be kept.
        """
        os.close(descriptor)


def write_all(
    io: BlockIo, descriptor: int, data: bytes | bytearray | memoryview, offset: int
) -> None:
    """Writes all of `data` at `offset` [bytes], in as many writes as that takes.

    Raises:
        OSError: The disk is full, gone or broken, or takes no more bytes.
    """
    rest = memoryview(data)
    while rest:
        written = io.write(descriptor, rest, offset)
        if written <= 0:
            raise OSError(5, "the disk takes no more bytes")
        rest, offset = rest[written:], offset + written


def read_some(io: BlockIo, descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from `offset` [bytes] as far as there is something; returns how far.

    Raises:
        OSError: The disk is gone or broken.
    """
    filled = 0
    while filled < len(buffer):
        count = io.read(descriptor, buffer[filled:], offset + filled)
        if count <= 0:
            break
        filled += count
        if count % ALIGNMENT_BYTES:  # an end that is no multiple: nothing can follow
            break
    return filled


def open_fresh(io: BlockIo, path: Path) -> int:
    """Opens for reading, past the page cache where the system offers that.

    Raises:
        OSError: It can't be opened.
    """
    try:
        descriptor = io.open(path, os.O_RDONLY | _DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        descriptor = io.open(path, os.O_RDONLY)  # a file system without direct reads
    drop_cache(descriptor)
    return descriptor


def drop_cache(descriptor: int) -> None:
    """Asks the kernel to forget what it holds of a file or disk, so that reads go to the medium."""
    with contextlib.suppress(OSError):
        if stat.S_ISBLK(os.fstat(descriptor).st_mode):
            fcntl.ioctl(descriptor, _BLKFLSBUF, 0)
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def reread_partitions(descriptor: int) -> None:
    """Asks the kernel to read a disk's partition table again; a disk without one is left alone."""
    with contextlib.suppress(OSError):
        if stat.S_ISBLK(os.fstat(descriptor).st_mode):
            fcntl.ioctl(descriptor, _BLKRRPART, 0)


def size_of(descriptor: int) -> int:
    """How large an open file or disk is [bytes].

    Raises:
        OSError: It is gone.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISBLK(status.st_mode):
        return status.st_size
    return int.from_bytes(fcntl.ioctl(descriptor, _BLKGETSIZE64, bytes(8)), sys.byteorder)


def aligned_buffer(size_bytes: int) -> memoryview:
    """Memory that reads past the page cache can fill."""
    return memoryview(mmap.mmap(-1, size_bytes))
