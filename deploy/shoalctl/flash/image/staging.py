"""An image made ready: what is known of it, and its boot partition seeded on this machine.

The card is written from the image with the staged partition laid over it, so that what is read
back can be compared byte for byte, seeds included, and an image that can't be seeded is refused
before the card is touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import FlashFailed
from shoalctl.flash.image.fat import FatHeader, FatVolume, read_fat_header
from shoalctl.flash.image.partitions import (
    HEAD_BYTES,
    SECTOR_BYTES,
    Partition,
    PartitionTable,
    first_start_bytes,
    read_table,
)
from shoalctl.flash.image.source import CHUNK_BYTES, ImageSource
from shoalctl.flash.seeds import boot_partition
from shoalctl.flash.seeds.architecture import check_bundle_fits
from shoalctl.flash.seeds.boot_partition import SeedFile
from shoalctl.flash.seeds.settings import DeviceSettings
from shoalctl.flash.seeds.support import BootFiles, SeedFormat, Support, asked_for, support_of

_ZEROS = bytes(CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of an image: those from `start_bytes` up to, and without, `end_bytes`."""

    start_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """An image that is ready to be written.

    Attributes:
        source: The image file.
        table: Its partitions.
        withheld: What makes it bootable, in the order it is written at the very end; the last is
            block 0. Each lies within one chunk.
        required_bytes: The least size of a target.
        support: How it is seeded; None if there was nothing to tell.
        boot: The seeded partition; None without seeds.
        boot_path: Its bytes, on this machine.
        seeds: The files that must be on the card in the end.
    """

    source: ImageSource
    table: PartitionTable
    withheld: tuple[Range, ...]
    required_bytes: int
    support: Support | None = None
    boot: Partition | None = None
    boot_path: Path | None = None
    seeds: tuple[SeedFile, ...] = ()

    def chunks(self, original: Callable[[bytes], None]) -> Generator[bytearray, None, None]:
        """What goes to the card, in pieces of `CHUNK_BYTES`; one is read ahead of the writer.

        Close it: a thread of its own must not be left to the garbage collector.

        Args:
            original: Called with each piece as the image has it.

        Raises:
            FlashFailed: The image is damaged, or it can't be read.
        """
        with ExitStack() as stack:
            chunks = stack.enter_context(closing(self.source.chunks()))
            pool = stack.enter_context(ThreadPoolExecutor(1, "read-ahead"))
            boot = stack.enter_context(self.boot_path.open("rb")) if self.boot_path else None
            ahead = pool.submit(next, chunks, None)
            offset = 0
            while (chunk := ahead.result()) is not None:
                ahead = pool.submit(next, chunks, None)
                original(chunk)
                content = bytearray(chunk)
                if boot and self.boot:
                    start = max(offset, self.boot.start_bytes)
                    end = min(offset + len(content), self.boot.end_bytes)
                    if start < end:
                        boot.seek(start - self.boot.start_bytes)
                        content[start - offset : end - offset] = boot.read(end - start)
                yield content
                offset += len(chunk)


def stage(
    source: ImageSource,
    settings: DeviceSettings,
    directory: Path,
    *,
    instance_id: str,
    seed_format: SeedFormat | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Staged:
    """Makes an image ready.

    Args:
        source: The image file.
        settings: What the device is told; when empty, the image is written as it is.
        directory: Where the boot partition is unpacked; it must outlive the result.
        instance_id: Unique to this flash.
        seed_format: How to seed whatever the image looks like; None to find out.
        advance: Called with the number of bytes of the image that were unpacked.

    Raises:
        FlashFailed: The image is damaged, has no partition table, can't be seeded, or isn't for
            the processor that the bundle is for.
    """
    chunks = source.chunks()
    first = next(chunks, b"")
    advance(len(first))
    table = read_table(first[:HEAD_BYTES])
    if table is None:
        raise FlashFailed(
            f"{source.path} holds no partition table, so it is no image of a disk: "
            "give the image that is meant for a card"
        )
    required = max(table.end_bytes, source.size_bytes or 0)
    plain = Staged(source, table, _withheld(table), required)
    if settings.is_empty:
        return plain
    candidates = [partition for partition in table.partitions if partition.may_be_fat]
    refused: Support | None = None
    for partition, path in _unpacked(chunks, first, candidates, directory, advance):
        with path.open("rb") as file:
            header = read_fat_header(file.read(SECTOR_BYTES))
        if header is None:
            continue
        boot = boot_partition.look(FatVolume(path), header)
        support = asked_for(boot, seed_format) if seed_format else support_of(boot)
        if support.format is None:
            refused = refused or support
            continue
        check_bundle_fits(settings.bundle, boot)
        seeds = _seeded(path, header, boot, support, settings, instance_id)
        return Staged(source, table, plain.withheld, required, support, partition, path, seeds)
    reason = refused.reason if refused else "it has no FAT partition that settings could lie in"
    raise FlashFailed(f"{source.path.name} can't be told its settings: {reason}")


def _seeded(
    path: Path,
    header: FatHeader,
    boot: BootFiles,
    support: Support,
    settings: DeviceSettings,
    instance_id: str,
) -> tuple[SeedFile, ...]:
    volume = FatVolume(path)
    seeds = boot_partition.seed(volume, header, boot, support, settings, instance_id)
    boot_partition.check(volume, seeds, lambda: None)
    return seeds


def _withheld(table: PartitionTable) -> tuple[Range, ...]:
    start = first_start_bytes(table.partitions)
    head = min(HEAD_BYTES, start if start is not None else HEAD_BYTES)
    ranges = [Range(SECTOR_BYTES, max(head, SECTOR_BYTES)), Range(0, SECTOR_BYTES)]
    if table.backup_bytes is not None:  # firmware repairs a GPT from its backup
        ranges.insert(0, Range(table.backup_bytes, table.backup_bytes + SECTOR_BYTES))
    return tuple(ranges)


def _unpacked(
    chunks: Iterator[bytes],
    first: bytes,
    partitions: Sequence[Partition],
    directory: Path,
    advance: Callable[[int], None],
) -> Iterator[tuple[Partition, Path]]:
    """Unpacks partitions one by one, in the order they lie in, and reads no further than needed."""
    offset, chunk = 0, first
    for partition in sorted(partitions, key=lambda partition: partition.start_bytes):
        path = directory / f"partition-{partition.number}"
        with path.open("wb") as file:
            while True:
                start = max(partition.start_bytes, offset)
                end = min(partition.end_bytes, offset + len(chunk))
                if start < end:
                    file.seek(start - partition.start_bytes)
                    piece = memoryview(chunk)[start - offset : end - offset]
                    if not is_zero(piece):  # zeros stay a hole
                        file.write(piece)
                if offset + len(chunk) >= partition.end_bytes:
                    break
                offset += len(chunk)
                chunk = next(chunks, b"")
                if not chunk:
                    raise FlashFailed(
                        f"the image ends inside its partition {partition.number}: "
                        "it was cut short, download it again"
                    )
                advance(len(chunk))
            file.truncate(partition.size_bytes)
        yield partition, path


def digest_of(content: bytes | bytearray | memoryview) -> str:
    """What a piece of the card is compared by: BLAKE2b, 16 bytes, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def is_zero(content: bytes | bytearray | memoryview) -> bool:
    """Whether a piece of at most `CHUNK_BYTES` holds nothing but zeros."""
    return memoryview(_ZEROS)[: len(content)] == content


def chunk_ranges(size_bytes: int) -> Iterator[Range]:
    """The pieces that an image of `size_bytes` is written and verified in."""
    for start in range(0, size_bytes, CHUNK_BYTES):
        yield Range(start, min(start + CHUNK_BYTES, size_bytes))
