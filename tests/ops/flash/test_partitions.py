"""Partition tables: read as the kernel does, damaged ones refused, garbage never believed."""

from __future__ import annotations

import pytest
from flash_images import BOOT_AT, BOOT_BYTES, MIB, ROOT_AT, ROOT_BYTES, gpt, mbr
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import FlashFailed
from shoalctl.flash.image.partitions import Partition, TableKind, read_table

PARTITIONS = [(0x0C, BOOT_AT, BOOT_BYTES), (0x83, ROOT_AT, ROOT_BYTES)]
EXPECTED = (
    Partition(1, BOOT_AT, BOOT_BYTES, may_be_fat=True),
    Partition(2, ROOT_AT, ROOT_BYTES, may_be_fat=False),
)


def test_an_mbr_is_read() -> None:
    table = read_table(mbr(PARTITIONS))
    assert table is not None
    assert (table.kind, table.partitions) == (TableKind.MBR, EXPECTED)
    assert table.end_bytes == ROOT_AT + ROOT_BYTES


def test_a_gpt_is_read_with_where_its_backup_lies() -> None:
    table = read_table(gpt(PARTITIONS, 9 * MIB)[0])
    assert table is not None
    assert (table.kind, table.partitions) == (TableKind.GPT, EXPECTED)
    assert table.backup_bytes == 9 * MIB - 512
    assert table.end_bytes == 9 * MIB


@pytest.mark.parametrize("at", [512, 512 + 16, 512 + 40, 1024, 1024 + 130])
def test_a_damaged_gpt_is_refused(at: int) -> None:
    head = bytearray(gpt(PARTITIONS, 9 * MIB)[0])
    head[at] ^= 1
    with pytest.raises(FlashFailed, match=r"GPT.*download"):
        read_table(bytes(head))


@pytest.mark.parametrize("length", [512, 600, 1024, 5000])
def test_a_gpt_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(FlashFailed, match="GPT"):
        read_table(gpt(PARTITIONS, 9 * MIB)[0][:length])


@pytest.mark.parametrize(
    "head", [b"", bytes(512), b"PK\x03\x04" + bytes(600), bytes(510) + b"\x55\xaa"]
)
def test_what_is_no_table_is_none(head: bytes) -> None:
    assert read_table(head) is None


def test_a_file_system_without_a_table_is_no_table() -> None:
    sector = bytearray(mbr(PARTITIONS))
    sector[82:87] = b"FAT32"
    assert read_table(bytes(sector)) is None


@given(st.binary(max_size=2048))
def test_garbage_never_crashes(head: bytes) -> None:
    try:
        table = read_table(head[:510].ljust(510, b"\0") + b"\x55\xaa" + head[510:])
    except FlashFailed:
        return
    assert table is None or all(p.size_bytes > 0 for p in table.partitions)
