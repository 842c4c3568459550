"""zstd frames: the one place that knows what compresses them.

It is `compression.zstd` of Python 3.14's standard library, and its backport before that. A reader
learns the size of a frame first, and then no more than that is ever allocated.

Their decompressors serve one frame each, and copy what comes out twice. Where `zstandard` is
installed, as it is on a learner, chunks are opened by it: a thread keeps its decompressor, which
writes once. It is imported with the first of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd as _zstd
else:
    from backports import zstd as _zstd

ZstdError = _zstd.ZstdError
"""A frame is damaged, cut, or not what its reader takes."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_CHECKSUM_FLAG: Final = 4  # of the frame header's descriptor, the byte after the magic: RFC 8878
_MAX_WINDOW_LOG: Final = 27  # 128 MiB, zstd's own limit
_AT_ONCE: Final = range(1, 8 * 1024 * 1024)
"""Sizes at which a kept decompressor is worth it; far below what a hostile frame may claim."""
_Parameter = _zstd.CompressionParameter
_NOISE: Final[Mapping[int, int]] = {
    _Parameter.strategy: _zstd.Strategy.fast,
    _Parameter.min_match: 7,
    _Parameter.window_log: 17,
    _Parameter.hash_log: 6,
    _Parameter.chain_log: 6,
    _Parameter.search_log: 1,
}
"""Next to no search: in noise, matches are found that cost more than the Huffman coder alone."""
_BOUND: Final[Mapping[int, int]] = {_zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}


def compress(raw: bytes | memoryview, *, level: int, checksum: bool = False) -> bytes:
    """One frame, which says its size.

    Args:
        raw: What it holds.
        level: zstd's, 1 the fastest.
        checksum: Whether the frame ends with one of `raw`.
    """
    options: dict[int, int] = {
        _Parameter.compression_level: level,
        _Parameter.checksum_flag: int(checksum),
    }
    return _zstd.compress(raw, options=options)


def compress_noise(raw: bytes) -> bytes:
    """One frame, which says its size, of bytes that are unequally frequent and nothing else."""
    return _zstd.compress(raw, options=_NOISE)


def compress_blocks(blocks: Sequence[bytes]) -> bytes:
    """One frame of all these, which says its size: each is coded by itself, as noise is.

    It takes one context to write and one to read. A context asks the processor what it is, which
    takes tens of microseconds on a virtual machine: more than a small frame itself.
    """
    compressor = _zstd.ZstdCompressor(options=_NOISE)
    compressor.set_pledged_input_size(sum(map(len, blocks)))
    done = [compressor.compress(block, compressor.FLUSH_BLOCK) for block in blocks]
    return b"".join([*done, compressor.flush(compressor.FLUSH_FRAME)])


class BlockScale:
    """Says how long blocks would be in a frame of `compress_blocks`, with one context for all.

    scale = BlockScale()
    scale.weigh(bytes(1000))      # a few
    """

    def __init__(self) -> None:
        """Nothing is weighed yet."""
        self._compressor = _zstd.ZstdCompressor(options=_NOISE)

    def weigh(self, block: bytes) -> int:
        """Bytes of one block, with its head; a little less where it repeats what was weighed."""
        return len(self._compressor.compress(block, self._compressor.FLUSH_BLOCK))


def is_frame(data: bytes) -> bool:
    """Whether bytes begin as a frame does."""
    return data.startswith(_MAGIC)


def decompressor(*, window_log: int) -> _zstd.ZstdDecompressor:
    """Of one frame, in pieces: `decompress(data, max_length)`, `needs_input`, `eof`, `unused_data`.

    Args:
        window_log: It takes no frame with a larger window than 2 to this many bytes.
    """
    return _zstd.ZstdDecompressor(options={_zstd.DecompressionParameter.window_log_max: window_log})


def content_size(frame: bytes | memoryview) -> int | None:
    """How many bytes it says that it holds; None where it doesn't say. Nothing is decompressed.

    Raises:
        ZstdError: It is not a frame.
    """
    if (
        bytes(frame[: len(_MAGIC)]) != _MAGIC
    ):  # zstd would take one that is to be skipped for an empty one
        raise ZstdError("it does not begin like one")
    size: int | None = _zstd.get_frame_info(frame).decompressed_size
    return size


def has_checksum(frame: bytes | memoryview) -> bool:
    """Whether a frame, whose size was read, ends with a checksum of what it holds."""
    return bool(frame[len(_MAGIC)] & _CHECKSUM_FLAG)


def decompress(frame: bytes | memoryview, size: int) -> bytes:
    """What a frame holds: `size` bytes, and not one more is written.

    Args:
        frame: One frame, and nothing after it.
        size: What it must say; the caller has bounded it.

    Raises:
        ZstdError: It is damaged, cut, holds another size, or something follows it.
        MemoryError: There is no memory for it.
    """
    if content_size(frame) != size:
        raise ZstdError(f"it says another size than {size} bytes")
    at_once = _at_once() if size in _AT_ONCE else None
    if at_once is not None:
        whole = at_once(frame)
        if whole is not None:
            return whole
    decompressor = _zstd.ZstdDecompressor(options=_BOUND)
    raw = decompressor.decompress(frame, size)
    if not decompressor.eof:
        raise ZstdError("it is cut, or holds more than it says")
    if decompressor.unused_data:
        raise ZstdError("something follows it")
    if len(raw) != size:
        raise ZstdError(f"it holds {len(raw)} bytes, and must have {size}")
    return raw


@lru_cache(1)
def _at_once() -> Callable[[bytes | memoryview], bytes | None] | None:
    """Opens a whole frame by `zstandard`; None where that is not installed.

    What it opens comes out as None where something is wrong: the other binding says what.
    """
    try:
        import zstandard  # noqa: PLC0415 - a learner's alone, and heavy
    except ImportError:
        return None
    kept = threading.local()

    def decompress_at_once(frame: bytes | memoryview) -> bytes | None:
        decompressor = getattr(kept, "decompressor", None)
        if decompressor is None:
            window = 1 << _MAX_WINDOW_LOG
            decompressor = kept.decompressor = zstandard.ZstdDecompressor(max_window_size=window)
        try:
            raw: bytes = decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError:
            return None
        return raw

    return decompress_at_once
