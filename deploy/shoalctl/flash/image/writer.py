"""Puts an image on a target, and what makes it bootable at the very end.

Order is everything: zeros over the old block 0, then the image with its partition table withheld,
each step durable before the next. Whatever happens in between, block 0 holds nothing valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.errors import FlashFailed
from shoalctl.flash.image.block_io import BlockIo, size_of, write_all
from shoalctl.flash.image.journal import FlashJournal
from shoalctl.flash.image.partitions import HEAD_BYTES
from shoalctl.flash.image.source import CHUNK_BYTES
from shoalctl.flash.image.staging import Range, digest_of, is_zero
from shoalctl.output import size

SYNC_BYTES = 64 << 20
"""How much is written between two syncs, each of which the journal notes."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, for verification and for the end.

    Attributes:
        size_bytes: Of the image.
        digests: Of each piece as it is on the target now, with what is withheld as zeros.
        withheld: The bytes of each withheld range, in the order they are to be written.
        skipped_bytes: What was there already.
    """

    size_bytes: int
    digests: tuple[str, ...]
    withheld: tuple[bytes, ...]
    skipped_bytes: int


def erase(io: BlockIo, descriptor: int, withheld: Sequence[Range], *, both_ends: bool) -> None:
    """Overwrites what makes a target bootable, durably: block 0 first.

    Args:
        io: The operating system.
        descriptor: The open target.
        withheld: What is to stay zero until the end, and may hold something from an earlier flash.
        both_ends: Whether the end is overwritten too, where a GPT has its backup: firmware repairs
            a table from there.

    Raises:
        OSError: It can't be written.
    """
    zeros = bytes(HEAD_BYTES)
    end = size_of(descriptor)
    write_all(io, descriptor, zeros, 0)
    io.sync(descriptor)
    for bounds in withheld:
        if bounds.start_bytes >= HEAD_BYTES:
            write_all(
                io, descriptor, zeros[: bounds.end_bytes - bounds.start_bytes], bounds.start_bytes
            )
    if both_ends and end > 2 * HEAD_BYTES:
        write_all(io, descriptor, zeros, end - HEAD_BYTES)
    io.sync(descriptor)


def write_body(
    io: BlockIo,
    descriptor: int,
    chunks: Iterable[bytearray],
    withheld: Sequence[Range],
    journal: FlashJournal,
    *,
    limit_bytes: int,
    holes: bool,
    advance: Callable[[int], None],
) -> Written:
    """Writes everything but what is withheld; durable when it returns.

    Args:
        io: The operating system.
        descriptor: The open target.
        chunks: The image, in pieces of `CHUNK_BYTES`.
        withheld: What stays zero for now.
        journal: What an earlier flash has written is skipped; what this one writes is noted.
        limit_bytes: Where to stop an image that never ends.
        holes: Whether the target holds nothing but zeros yet, so that zeros needn't be written.
        advance: Called with the number of bytes that were dealt with.

    Raises:
        FlashFailed: The image is larger than the target.
        OSError: The target is full, gone or broken.
    """
    offset = synced = skipped = 0
    digests: list[str] = []
    kept: dict[Range, bytes] = {}
    for index, chunk in enumerate(chunks):
        if offset + len(chunk) > limit_bytes:
            raise FlashFailed(
                f"the image is larger than the target, which holds {size(limit_bytes)}"
            )
        kept |= _withhold(chunk, offset, withheld)
        digest = digest_of(chunk)
        if journal.holds(index, digest):
            skipped += len(chunk)
        elif not (holes and is_zero(chunk)):
            write_all(io, descriptor, chunk, offset)
        digests.append(digest)
        offset += len(chunk)
        advance(len(chunk))
        if offset - synced >= SYNC_BYTES:
            io.sync(descriptor)
            journal.record(synced // CHUNK_BYTES, digests[synced // CHUNK_BYTES :])
            synced = offset
    io.sync(descriptor)
    journal.record(synced // CHUNK_BYTES, digests[synced // CHUNK_BYTES :])
    missing = [bounds for bounds in withheld if bounds not in kept]
    if missing:
        raise FlashFailed("the image ends before its partition table says: download it again")
    return Written(offset, tuple(digests), tuple(kept[bounds] for bounds in withheld), skipped)


def commit(
    io: BlockIo,
    descriptor: int,
    withheld: Sequence[Range],
    contents: Sequence[bytes],
) -> None:
    """Writes what was withheld, durably: everything before block 0 first, then block 0.

    Raises:
        OSError: The target is gone or broken.
    """
    *before, (block_0, block_0_content) = zip(withheld, contents, strict=True)
    for bounds, content in before:
        write_all(io, descriptor, content, bounds.start_bytes)
    io.sync(descriptor)
    write_all(io, descriptor, block_0_content, block_0.start_bytes)
    io.sync(descriptor)


def _withhold(chunk: bytearray, offset: int, withheld: Sequence[Range]) -> dict[Range, bytes]:
    """Takes what is withheld out of a chunk, and leaves zeros."""
    taken = {}
    for bounds in withheld:
        start, end = bounds.start_bytes - offset, bounds.end_bytes - offset
        if 0 <= start < end <= len(chunk):
            taken[bounds] = bytes(chunk[start:end])
            chunk[start:end] = bytes(end - start)
    return taken
