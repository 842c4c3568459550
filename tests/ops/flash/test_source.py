"""Images as they are downloaded: every format, damaged, cut short, too large or something else."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import zstd
from shoal.errors import ConfigError, FlashFailed
from shoalctl.flash.image.source import CHUNK_BYTES, Compression, ImageSource


def zipped(data: bytes, *names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("raspios.img", "LICENSE"):
            archive.writestr(name, data if name.endswith(".img") else b"text")
    return out.getvalue()


def framed(data: bytes) -> bytes:
    return zstd.compress(data, level=3)


PACKERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: bytes,
    Compression.XZ: lzma.compress,
    Compression.GZIP: gzip.compress,
    Compression.ZSTD: framed,
    Compression.ZIP: zipped,
}
CONTENT = b"\x33\xc0" + bytes(CHUNK_BYTES) + b"end" * 500_000 + bytes(range(256)) * 999


def source_of(data: bytes, directory: Path, name: str = "image") -> ImageSource:
    path = directory / name
    path.write_bytes(data)
    return ImageSource.open(path)


@pytest.mark.parametrize("compression", PACKERS)
def test_every_format_is_recognized_by_its_bytes_and_unpacked(
    compression: Compression, tmp_path: Path
) -> None:
    source = source_of(PACKERS[compression](CONTENT), tmp_path)
    chunks = list(source.chunks())
    assert source.compression is compression
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_BYTES] * (len(chunks) - 1)
    same = b"".join(chunks) == CONTENT
    assert same


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.XZ, Compression.ZIP])
def test_the_size_is_known_where_the_format_says_it(
    compression: Compression, tmp_path: Path
) -> None:
    assert source_of(PACKERS[compression](CONTENT), tmp_path).size_bytes == len(CONTENT)


@pytest.mark.parametrize("compression", [Compression.XZ, Compression.GZIP, Compression.ZSTD])
def test_members_in_a_row_are_one_image(compression: Compression, tmp_path: Path) -> None:
    packed = PACKERS[compression]
    source = source_of(packed(b"\x33first") + packed(b"") + packed(b"second"), tmp_path)
    assert b"".join(source.chunks()) == b"\x33firstsecond"
    assert source.size_bytes == (12 if compression is Compression.XZ else None)


@pytest.mark.parametrize("compression", [c for c in PACKERS if c is not Compression.NONE])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_that_was_cut_short_is_refused(
    compression: Compression, share: float, tmp_path: Path
) -> None:
    noise = bytes(i * i % 251 for i in range(400_000))
    packed = PACKERS[compression](noise)
    with pytest.raises(FlashFailed, match="download"):
        list(source_of(packed[: int(len(packed) * share)], tmp_path).chunks())


@pytest.mark.parametrize("compression", [c for c in PACKERS if c is not Compression.NONE])
def test_a_file_with_a_wrong_byte_is_refused(compression: Compression, tmp_path: Path) -> None:
    packed = bytearray(PACKERS[compression](bytes(i * i % 251 for i in range(400_000))))
    packed[len(packed) // 2] ^= 0xFF
    if compression is Compression.ZSTD:  # its frames carry no checksum unless asked to
        packed = bytearray(zstd.compress(CONTENT, level=3, checksum=True))
        packed[-1] ^= 0xFF
    with pytest.raises(FlashFailed, match="download"):
        list(source_of(bytes(packed), tmp_path).chunks())


@pytest.mark.parametrize("compression", [Compression.XZ, Compression.GZIP, Compression.ZSTD])
def test_a_bomb_is_unpacked_in_small_pieces(compression: Compression, tmp_path: Path) -> None:
    """300 MB of zeros in a file of some KB: what is asked for is all that is unpacked."""
    import tracemalloc

    if compression is Compression.ZSTD:
        packed = zstd.compress(bytes(300_000_000), level=19)
    elif compression is Compression.XZ:
        packed = lzma.compress(bytes(300_000_000), preset=0)
    else:
        packed = gzip.compress(bytes(300_000_000), 9)
    source = source_of(packed, tmp_path)
    tracemalloc.start()
    assert len(next(source.chunks())) == CHUNK_BYTES
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120_000_000


def test_a_zip_is_never_written_raw(tmp_path: Path) -> None:
    source = source_of(zipped(b"\x33image"), tmp_path, "raspios.img")
    assert source.compression is Compression.ZIP
    assert b"".join(source.chunks()) == b"\x33image"


@pytest.mark.parametrize("names", [("a.img", "b.img"), ("LICENSE", "README")])
def test_a_zip_without_exactly_one_image_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"exactly one \.img"):
        source_of(zipped(b"x", *names), tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bz2.compress(b"x"), "bzip2"),
        (b"QFI\xfb" + bytes(100), "qemu-img convert"),
        (b"", "empty"),
    ],
)
def test_what_we_do_not_read_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        source_of(data, tmp_path)


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst", ".zip"])
def test_a_web_page_that_is_called_an_image_is_refused(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="web page"):
        source_of(b"<!DOCTYPE html>", tmp_path, f"raspios.img{suffix}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ImageSource.open(tmp_path / "nothing.img")


@given(
    parts=st.lists(st.binary(max_size=3000), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    check=st.sampled_from([lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_SHA256]),
)
def test_the_index_of_any_xz_file_tells_its_size(
    parts: list[bytes], padding: int, check: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytes(4 * padding).join(lzma.compress(part, check=check) for part in parts)
    source = source_of(data + bytes(4 * padding), tmp_path_factory.mktemp("xz"))
    assert source.size_bytes == sum(len(part) for part in parts)
    assert b"".join(source.chunks()) == b"".join(parts)


@given(data=st.binary(max_size=300), cut=st.integers(0, 200))
def test_damaged_xz_files_are_refused_and_never_crash(
    data: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = lzma.compress(b"some image" * 50)
    damaged = whole[: 12 + cut] + data
    try:
        list(source_of(damaged, tmp_path_factory.mktemp("xz")).chunks())
    except FlashFailed:
        return
    assert damaged.rstrip(b"\0") == whole
