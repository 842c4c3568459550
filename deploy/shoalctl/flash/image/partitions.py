"""The partition tables MBR and GPT, read from the head of an image.

Sources: the classical MBR layout (four entries at byte 446, signature 55 AA at byte 510), and
UEFI 2.10, section 5.3 (GPT: header at block 1, CRC-32 of header and entries).
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal.errors import FlashFailed

SECTOR_BYTES = 512
HEAD_BYTES = 1 << 20
"""How much of an image holds its partition table, and is written last."""

_ENTRY_AT, _ENTRY_BYTES, _ENTRIES, _SIGNATURE_AT = 446, 16, 4, 510
_PROTECTIVE = 0xEE
_FAT_TYPES = frozenset({0x01, 0x04, 0x06, 0x0B, 0x0C, 0x0E, 0xEF})
_FAT_GUIDS = frozenset(
    {
        uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),  # EFI system
        uuid.UUID("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"),  # basic data
    }
)
_GPT = struct.Struct("<8s4sIIIQQQQ16sQIII")
_GPT_ENTRY = struct.Struct("<16s16sQQQ72s")
_MAX_GPT_ENTRIES = 1024


class TableKind(StrEnum):
    """How an image is divided."""

    MBR = "mbr"
    GPT = "gpt"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition.

    Attributes:
        number: From 1, as in `/dev/sda1`.
        start_bytes: Where it begins.
        size_bytes: How long it is.
        may_be_fat: Whether its type is one that FAT file systems carry.
    """

    number: int
    start_bytes: int
    size_bytes: int
    may_be_fat: bool

    @property
    def end_bytes(self) -> int:
        """The first byte behind it."""
        return self.start_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The partitions of an image.

    Attributes:
        kind: MBR or GPT.
        partitions: In the order of the table.
        backup_bytes: Where the backup of a GPT header lies; None for MBR.
    """

    kind: TableKind
    partitions: tuple[Partition, ...]
    backup_bytes: int | None = None

    @property
    def end_bytes(self) -> int:
        """The least size of a disk that holds every partition."""
        ends = [partition.end_bytes for partition in self.partitions]
        if self.backup_bytes is not None:
            ends.append(self.backup_bytes + SECTOR_BYTES)
        return max(ends, default=SECTOR_BYTES)


def read_table(head: bytes) -> PartitionTable | None:
    """Reads the partition table from the first `HEAD_BYTES` of an image, or what there is of them.

    Returns:
        The table; None when there is none.

    Raises:
        FlashFailed: There is a GPT, and it is damaged.
    """
    if len(head) < SECTOR_BYTES or head[_SIGNATURE_AT:SECTOR_BYTES] != b"\x55\xaa":
        return None
    if head[54:59] in {b"FAT12", b"FAT16"} or head[82:87] == b"FAT32":
        return None  # a FAT file system without a partition table around it
    entries = [
        struct.unpack_from("<B3xB3xII", head, _ENTRY_AT + _ENTRY_BYTES * index)
        for index in range(_ENTRIES)
    ]
    if any(kind == _PROTECTIVE for _, kind, _, _ in entries):
        return _read_gpt(head)
    partitions = tuple(
        Partition(number, start * SECTOR_BYTES, count * SECTOR_BYTES, kind in _FAT_TYPES)
        for number, (status, kind, start, count) in enumerate(entries, start=1)
        if kind and start and count and status in {0x00, 0x80}
    )
    return PartitionTable(TableKind.MBR, partitions) if partitions else None


def first_start_bytes(partitions: Sequence[Partition]) -> int | None:
    """Where the first partition begins; None when there is none."""
    return min((partition.start_bytes for partition in partitions), default=None)


def _read_gpt(head: bytes) -> PartitionTable:
    if len(head) < 2 * SECTOR_BYTES + _GPT.size:
        raise FlashFailed("the image ends inside its partition table (GPT): download it again")
    (
        signature,
        _,
        header_bytes,
        crc,
        _,
        _,
        backup,
        _,
        _,
        _,
        at,
        count,
        entry_bytes,
        entries_crc,
    ) = _GPT.unpack_from(head, SECTOR_BYTES)
    header = head[SECTOR_BYTES : SECTOR_BYTES + header_bytes]
    sane = (
        signature == b"EFI PART"
        and _GPT.size <= header_bytes <= SECTOR_BYTES
        and count <= _MAX_GPT_ENTRIES
        and entry_bytes in {128, 256, 512}
        and at * SECTOR_BYTES + count * entry_bytes <= len(head)
    )
    if not sane or zlib.crc32(header[:16] + bytes(4) + header[20:]) != crc:
        raise FlashFailed("the image's partition table (GPT) is damaged: download the image again")
    table = head[at * SECTOR_BYTES : at * SECTOR_BYTES + count * entry_bytes]
    if zlib.crc32(table) != entries_crc:
        raise FlashFailed("the image's partition table (GPT) is damaged: download the image again")
    partitions = []
    for number in range(1, count + 1):
        kind, _, first, last, _, _ = _GPT_ENTRY.unpack_from(table, (number - 1) * entry_bytes)
        if any(kind) and first <= last:
            partitions.append(
                Partition(
                    number,
                    first * SECTOR_BYTES,
                    (last - first + 1) * SECTOR_BYTES,
                    uuid.UUID(bytes_le=kind) in _FAT_GUIDS,
                )
            )
    return PartitionTable(TableKind.GPT, tuple(partitions), backup * SECTOR_BYTES)
