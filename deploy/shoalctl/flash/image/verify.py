"""Reads a target back through a handle of its own and compares, so that no cache can lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoalctl.flash.image.block_io import (
    ALIGNMENT_BYTES,
    BlockIo,
    aligned_buffer,
    open_fresh,
    read_some,
)
from shoalctl.flash.image.source import CHUNK_BYTES
from shoalctl.flash.image.staging import Range, chunk_ranges, digest_of


@dataclass(frozen=True, slots=True)
class Difference:
    """Pieces of a target that are not what was written.

    Attributes:
        indices: Their numbers.
    """

    indices: tuple[int, ...]

    @property
    def first_bytes(self) -> int:
        """Where the first one begins."""
        return self.indices[0] * CHUNK_BYTES


def compare_body(
    io: BlockIo,
    path: Path,
    size_bytes: int,
    digests: Sequence[str],
    advance: Callable[[int], None],
) -> Difference | None:
    """Reads `size_bytes` back and compares each piece with its digest.

    Returns:
        What differs; None when nothing does.

    Raises:
        OSError: The target is gone or broken.
    """
    different = []
    descriptor = open_fresh(io, path)
    try:
        buffer = aligned_buffer(CHUNK_BYTES)
        for index, bounds in enumerate(chunk_ranges(size_bytes)):
            length = bounds.end_bytes - bounds.start_bytes
            found = _read(io, descriptor, buffer, bounds)
            if found < length or digest_of(buffer[:length]) != digests[index]:
                different.append(index)
            advance(length)
    finally:
        io.close(descriptor)
    return Difference(tuple(different)) if different else None


def equal_ranges(
    io: BlockIo, path: Path, ranges: Sequence[Range], contents: Sequence[bytes]
) -> bool:
    """Whether each range of a target reads back as its content.

    Raises:
        OSError: The target is gone or broken.
    """
    descriptor = open_fresh(io, path)
    try:
        buffer = aligned_buffer(CHUNK_BYTES)
        for bounds, content in zip(ranges, contents, strict=True):
            start = bounds.start_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            _read(io, descriptor, buffer, Range(start, bounds.end_bytes))
            if buffer[bounds.start_bytes - start : bounds.end_bytes - start] != content:
                return False
    finally:
        io.close(descriptor)
    return True


def _read(io: BlockIo, descriptor: int, buffer: memoryview, bounds: Range) -> int:
    """Reads a range that starts aligned, up to an aligned end; returns how much there was."""
    length = bounds.end_bytes - bounds.start_bytes
    whole = -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return read_some(io, descriptor, buffer[:whole], bounds.start_bytes)
