"""Chunks on their way: who made each, its number, and its bytes as they were written once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal import zstd
from shoal.column_body import check_column_body, is_column_body
from shoal.errors import LimitExceeded, WireError
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import frame_around, unframe_fields

MAX_ENVELOPE_BYTES: Final = 1024 * 1024
"""A broker's usual limit; 96 KiB is what chunks should aim for."""
_BODY: Final = pb.TrajectoryEnvelope.BODY_FIELD_NUMBER


@dataclass(frozen=True, slots=True, order=True)
class ChunkKey:
    """What names a chunk for ever."""

    device_id: str
    run_id: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """A chunk on its way.

    Attributes:
        key: Who made it, and its number.
        body: What `encode_chunk` gave; of a message that was read, a view into it.
        oldest_seq: Nothing of this run below it will be sent again.
    """

    key: ChunkKey
    body: bytes | memoryview
    oldest_seq: int


def codec_of(body: bytes | memoryview) -> pb.Codec:
    """How a body was written."""
    return pb.CODEC_COLUMNS if is_column_body(body) else pb.CODEC_ZSTD


def encode_envelope(envelope: Envelope) -> bytes:
    """Frames an envelope, whose body must be whole: it may come from a disk.

    Raises:
        LimitExceeded: It is larger than `MAX_ENVELOPE_BYTES`.
        WireError: Its body is damaged.
    """
    codec, raw_bytes = codec_of(envelope.body), 0
    checksum: int | None = None
    if codec == pb.CODEC_COLUMNS:
        checksum = check_column_body(envelope.body)
    else:
        raw_bytes = content_size_of(envelope.body)
    data = frame_around(
        pb.TrajectoryEnvelope(
            device_id=envelope.key.device_id,
            run_id=envelope.key.run_id,
            seq=envelope.key.seq,
            codec=codec,
            raw_bytes=raw_bytes,
        ),
        _BODY,
        envelope.body,
        pb.TrajectoryEnvelope(oldest_seq=envelope.oldest_seq),
        checksum=checksum,
    )
    if len(data) > MAX_ENVELOPE_BYTES:
        raise LimitExceeded(
            f"chunk: {len(data)} bytes, the limit is {MAX_ENVELOPE_BYTES}; lower chunk_steps"
        )
    return data


def decode_envelope(data: bytes) -> Envelope:
    """Reads a framed envelope; the body is not decompressed.

    Raises:
        WireError: The frame, the codec or the key is wrong.
    """
    message, found = unframe_fields(
        pb.TrajectoryEnvelope, data, (_BODY,), max_bytes=MAX_ENVELOPE_BYTES
    )
    if message.codec not in (pb.CODEC_ZSTD, pb.CODEC_COLUMNS):
        raise WireError(f"chunk: unknown codec {message.codec}; update this program")
    if len(message.run_id) != RUN_ID_BYTES:
        raise WireError(f"chunk: run_id must be {RUN_ID_BYTES} bytes, not {len(message.run_id)}")
    if max(message.seq, message.oldest_seq) >= 1 << 62 or message.oldest_seq > message.seq:
        raise WireError(f"chunk: seq {message.seq}, oldest_seq {message.oldest_seq}")
    key = ChunkKey(message.device_id, message.run_id, message.seq)
    return Envelope(key=key, body=found.get(_BODY, b""), oldest_seq=message.oldest_seq)


def content_size_of(body: bytes | memoryview) -> int:
    """Bytes of a body of one zstd frame once it is decompressed, as it says.

    Raises:
        WireError: It is no such frame, says nothing, or has no checksum.
    """
    try:
        size = zstd.content_size(body)
    except zstd.ZstdError as error:
        raise WireError(f"chunk: not a zstd frame ({error})") from error
    if size is None:
        raise WireError("chunk: the zstd frame does not say its size")
    if not zstd.has_checksum(body):
        raise WireError("chunk: the zstd frame has no checksum; a damaged one could pass for good")
    return size
