"""The body of an envelope whose chunk lies as columns: `ColumnChunk`, with its own checksum."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.columns import Packed, read_columns, write_columns
from shoal.errors import WireError
from shoal.tensors import Array
from shoal.v1 import columns_pb2 as pb
from shoal.wire import bytes_field, take_fields

_FIRST_TAG: Final = 0x0A  # of the fingerprint, which comes first; a zstd frame begins otherwise
_LAYOUT: Final = pb.ColumnChunk.LAYOUT_FIELD_NUMBER
_DATA: Final = pb.ColumnChunk.DATA_FIELD_NUMBER
_CHECKSUM_TAG: Final = bytes([pb.ColumnChunk.CHECKSUM_FIELD_NUMBER << 3 | 5])
_CHECKSUM_BYTES: Final = 5


class ColumnBody(NamedTuple):
    """What a body says.

    Attributes:
        head: All but the columns.
        arrays: The columns, by name.
    """

    head: pb.ColumnChunk
    arrays: dict[str, Array]


def is_column_body(body: bytes | memoryview) -> bool:
    """Whether a body is of this kind, and not a zstd frame."""
    return len(body) > 0 and body[0] == _FIRST_TAG


def write_column_body(
    head: pb.ColumnChunk, arrays: Mapping[str, Array], packed: Mapping[str, Packed]
) -> bytes:
    """Serializes a chunk.

    Args:
        head: Its first fields; what says how the columns lie is added.
        arrays: The columns, by name.
        packed: What goes into the bytes for each.

    Raises:
        WireError: A dtype cannot travel, or there are too many axes.
    """
    steps, envs = arrays["rewards"].shape
    written = write_columns(arrays, packed, steps=steps, envs=envs)
    head.layout.CopyFrom(written.layout)
    head.frame_bytes.extend(written.frame_bytes)
    before = head.SerializeToString(deterministic=True) + bytes_field(_DATA, len(written.data))
    checksum = zlib.crc32(written.data, zlib.crc32(before))
    return b"".join((before, written.data, _CHECKSUM_TAG, checksum.to_bytes(4, "little")))


def check_column_body(body: bytes | memoryview) -> int:
    """Checks that the bytes are those that were written.

    Returns:
        The CRC-32 of all of them.

    Raises:
        WireError: They were damaged.
    """
    end = len(body) - _CHECKSUM_BYTES
    checksum = zlib.crc32(memoryview(body)[:end]) if end >= 0 else 0
    said = body[max(end, 0) :]
    if said[:1] != _CHECKSUM_TAG or checksum != int.from_bytes(said[1:], "little"):
        raise WireError("chunk: the checksum does not match; bytes were damaged")
    return zlib.crc32(said, checksum)


def read_column_body(body: bytes | memoryview, *, max_bytes: int) -> ColumnBody:
    """Reads what `write_column_body` wrote; whether it is damaged, its caller has checked.

    Raises:
        LimitExceeded: Its columns say that they are larger than `max_bytes`.
        WireError: It is malformed.
    """
    head, found = take_fields(pb.ColumnChunk, body, (_LAYOUT, _DATA))
    arrays = read_columns(
        bytes(found.get(_LAYOUT, b"")),
        head.ends,
        head.frame_bytes,
        found.get(_DATA, b""),
        max_bytes=max_bytes,
    )
    return ColumnBody(head, arrays)
