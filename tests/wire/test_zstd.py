"""A frame of zstd says its size before anything is allocated, and then holds exactly that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import zstd

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
RAW = bytes(range(256)) * 300


@pytest.fixture(autouse=True, params=["zstandard", "standard library"], scope="module")
def binding(request: pytest.FixtureRequest) -> Iterator[str]:
    """With `zstandard`, as on a learner, and without it, as on a device."""
    with pytest.MonkeyPatch.context() as patch:
        zstd._at_once.cache_clear()
        if request.param == "zstandard":
            pytest.importorskip("zstandard")
        else:
            patch.setitem(sys.modules, "zstandard", None)
        assert (zstd._at_once() is None) is (request.param != "zstandard")
        yield request.param
    zstd._at_once.cache_clear()


@given(st.binary(max_size=2000), st.integers(1, 300), st.integers(1, 5), st.booleans())
def test_what_was_compressed_comes_back(
    part: bytes,
    times: int,
    level: int,
    checksum: bool,  # noqa: FBT001 - hypothesis draws it
) -> None:
    raw = part * times
    frame = zstd.compress(raw, level=level, checksum=checksum)
    assert zstd.content_size(frame) == len(raw)
    assert zstd.has_checksum(frame) is checksum
    assert zstd.decompress(frame, len(raw)) == raw


@given(st.lists(st.binary(max_size=500), max_size=9))
def test_blocks_come_back_as_one_frame(blocks: list[bytes]) -> None:
    frame, raw = zstd.compress_blocks(blocks), b"".join(blocks)
    assert zstd.is_frame(frame)
    assert zstd.content_size(frame) == len(raw)
    assert zstd.decompress(frame, len(raw)) == raw


def test_a_block_is_weighed_as_it_will_be() -> None:
    blocks = [bytes([n, 0, 0, n] * 200) for n in range(1, 5)]
    scale = zstd.BlockScale()
    assert abs(sum(map(scale.weigh, blocks)) - len(zstd.compress_blocks(blocks))) < 32


@given(st.binary(max_size=5000))
def test_noise_comes_back(raw: bytes) -> None:
    frame = zstd.compress_noise(raw)
    assert zstd.content_size(frame) == len(raw)
    assert not zstd.has_checksum(frame)
    assert zstd.decompress(frame, len(raw)) == raw


@given(st.integers(0, 10**6))
def test_a_cut_frame_is_refused(at: int) -> None:
    frame = zstd.compress(RAW, level=1, checksum=True)
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(frame[: at % len(frame)], len(RAW))


@given(st.data())
def test_a_flipped_bit_of_what_is_checksummed_is_found(data: st.DataObject) -> None:
    frame = bytearray(zstd.compress(RAW, level=1, checksum=True))
    bit = data.draw(st.integers(9 * 8, len(frame) * 8 - 1))  # after the header
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(bytes(frame), len(RAW))


@pytest.mark.parametrize("size", [0, 1, len(RAW) - 1, len(RAW) + 1])
def test_a_frame_of_another_size_than_asked_for_is_refused(size: int) -> None:
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(zstd.compress(RAW, level=1), size)


@pytest.mark.parametrize("rest", [b"\x00", SKIPPABLE, zstd.compress(b"", level=1)])
def test_nothing_may_follow_a_frame(rest: bytes) -> None:
    with pytest.raises(zstd.ZstdError, match="follows"):
        zstd.decompress(zstd.compress(RAW, level=1, checksum=True) + rest, len(RAW))


@pytest.mark.parametrize(
    "data", [b"", b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd", b"no frame", SKIPPABLE]
)
def test_what_is_not_a_frame_has_no_size(data: bytes) -> None:
    with pytest.raises(zstd.ZstdError):
        zstd.content_size(data)


def test_a_frame_that_does_not_say_its_size_is_told_apart() -> None:
    assert zstd.content_size(b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00") is None


def test_threads_open_frames_side_by_side() -> None:
    raws = [bytes([at]) * 70_000 + bytes(range(256)) * at for at in range(8)]
    frames = [zstd.compress(raw, level=1, checksum=True) for raw in raws]
    opened: dict[int, list[bytes]] = {}

    def open_all(turn: int) -> None:
        opened[turn] = [
            zstd.decompress(memoryview(frame), len(raw))
            for frame, raw in zip(frames, raws, strict=True)
        ]

    threads = [threading.Thread(target=open_all, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == dict.fromkeys(range(4), raws)
