"""The checksum of what comes in is CRC-32, whatever computes it."""

from __future__ import annotations

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import checksum
from shoal.checksum import crc32_joined, crc32_of_received


@given(st.binary(max_size=64), st.integers(0, 40_000))
def test_it_is_that_of_zlib(data: bytes, repeats: int) -> None:
    payload = data * (1 + repeats // (len(data) + 1))
    assert crc32_of_received(payload) == zlib.crc32(payload)
    assert crc32_of_received(memoryview(payload)) == zlib.crc32(payload)


def test_without_the_faster_library_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    checksum._fastest.cache_clear()
    payload = bytes(range(256)) * 1024
    assert crc32_of_received(payload) == zlib.crc32(payload)
    checksum._fastest.cache_clear()


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 40_000))
def test_the_sum_of_two_parts_is_that_of_the_whole(head: bytes, tail: bytes, zeros: int) -> None:
    after = tail + bytes(zeros)
    joined = crc32_joined(zlib.crc32(head), zlib.crc32(after), len(after))
    assert joined == zlib.crc32(head + after)


@pytest.mark.parametrize("power", range(24))
def test_parts_of_any_length_are_joined(power: int) -> None:
    after = bytes(1 << power)
    assert crc32_joined(0xDEADBEEF, 0, len(after)) ^ zlib.crc32(after) == zlib.crc32(
        after, 0xDEADBEEF
    )
