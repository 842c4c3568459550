"""The frame around every message: magic, major version, checksum, protobuf.

A frame is `b"SHL"`, one byte of major version, the CRC-32 of the payload (4 bytes, little-endian),
then the serialized message. TLS guards the way; the checksum guards disks and brokers, so that a
flipped bit anywhere is a `WireError` and never another message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from shoal.checksum import crc32_joined, crc32_of_received
from shoal.errors import LimitExceeded, UnsupportedVersion, WireError

MAJOR_VERSION = 1
MAGIC = b"SHL"
_HEADER = struct.Struct("<3sBI")
HEADER_BYTES = _HEADER.size
MAX_CONTROL_BYTES = 256 * 1024  # status, telemetry, event, ack
MAX_RECORDS = 65_536  # fields of one large message; a parser spends up to 40 times their bytes
_NUMBER = 0  # the wire type of one
_BYTES = 2  # the wire type of what says its length
_MAX_SHIFT = 70  # a number has ten bytes at most, of seven bits each
_GROUP = (3, 4)  # wire types that nothing of ours writes
_COUNT_OVER_BYTES = 64 * 1024  # below it no number of fields can take much memory

M = TypeVar("M", bound=Message)


def frame(message: Message) -> bytes:
    """Serializes a message into a frame. Equal messages give equal bytes."""
    payload = message.SerializeToString(deterministic=True)
    return _HEADER.pack(MAGIC, MAJOR_VERSION, zlib.crc32(payload)) + payload


def frame_around(
    before: Message,
    number: int,
    data: bytes | memoryview,
    after: Message,
    *,
    checksum: int | None = None,
) -> bytes:
    """The frame of a message with one large field, which is copied once rather than four times.

    Args:
        before: The message with the fields of lower numbers alone.
        number: Of the field of bytes; `data` is not empty.
        data: What is in it.
        after: The message with the fields of higher numbers alone.
        checksum: The CRC-32 of `data`, from whoever read it just before; None: it is read here.
    """
    parts = (
        before.SerializeToString(deterministic=True) + bytes_field(number, len(data)),
        data,
        after.SerializeToString(deterministic=True),
    )
    total = zlib.crc32(parts[0])
    if checksum is None:
        total = zlib.crc32(data, total)
    else:
        total = crc32_joined(total, checksum, len(data))
    total = zlib.crc32(parts[-1], total)
    return b"".join((_HEADER.pack(MAGIC, MAJOR_VERSION, total), *parts))


def unframe(cls: type[M], data: bytes, *, max_bytes: int = MAX_CONTROL_BYTES) -> M:
    """Reads a frame.

    Args:
        cls: The message type that is expected.
        data: The whole frame.
        max_bytes: The largest frame to accept; checked before anything is parsed.

    Raises:
        LimitExceeded: `data` is longer than `max_bytes`.
        UnsupportedVersion: The major version is not ours.
        WireError: Anything else is wrong with the bytes.
    """
    return parse(cls, bytes(_payload(cls.DESCRIPTOR.name, data, max_bytes)))


def unframe_fields(
    cls: type[M], data: bytes, numbers: Collection[int], *, max_bytes: int
) -> tuple[M, dict[int, memoryview]]:
    """Reads a frame but for some fields, whose bytes stay where they are: see `take_fields`.

    Raises:
        LimitExceeded: As `unframe`, or as `take_fields`.
        UnsupportedVersion: The major version is not ours.
        WireError: Anything else is wrong with the bytes.
    """
    return take_fields(cls, _payload(cls.DESCRIPTOR.name, data, max_bytes), numbers)


def _payload(name: str, data: bytes, max_bytes: int) -> memoryview:
    """What is in a frame that is whole."""
    if len(data) > max_bytes:
        raise LimitExceeded(
            f"{name}: {len(data)} bytes, the limit is {max_bytes}; send smaller messages"
        )
    if len(data) < HEADER_BYTES:
        raise WireError(f"{name}: {len(data)} bytes are too few for a frame")
    magic, version, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"{name}: not a Shoal frame (it starts with {magic!r})")
    if version != MAJOR_VERSION:
        raise UnsupportedVersion(
            f"{name}: wire version {version}, this program speaks {MAJOR_VERSION}; "
            "update the older side"
        )
    payload = memoryview(data)[HEADER_BYTES:]
    if crc32_of_received(payload) != checksum:
        raise WireError(f"{name}: the checksum does not match; bytes were damaged")
    return payload


def parse(cls: type[M], payload: bytes) -> M:
    """Parses protobuf bytes that carry no frame of their own.

    Raises:
        LimitExceeded: They hold more than `MAX_RECORDS` fields, counting repeated ones each time.
        WireError: They are not a serialized `cls`.
    """
    if len(payload) > _COUNT_OVER_BYTES:
        _check_records(cls.DESCRIPTOR.name, payload)
    return _parsed(cls, payload)


def take_fields(
    cls: type[M], payload: bytes | memoryview, numbers: Collection[int]
) -> tuple[M, dict[int, memoryview]]:
    """Parses a message but for some of its fields, whose bytes stay where they are, uncopied.

    Args:
        cls: The message type.
        payload: Its bytes, which carry no frame.
        numbers: Fields of bytes, or of messages, that may come once each.

    Returns:
        The rest of the message, and the bytes of those fields that are there, by number.

    Raises:
        LimitExceeded: There are more than `MAX_RECORDS` fields, counting repeated ones each time.
        WireError: They are not a serialized `cls`, or one of these fields comes twice.
    """
    name, view, end = cls.DESCRIPTOR.name, memoryview(payload), len(payload)
    found: dict[int, memoryview] = {}
    kept: list[memoryview] = []
    at = kept_from = 0
    for _ in range(MAX_RECORDS):
        if at >= end:
            break
        began = at
        tag = payload[at]
        if tag & 0x87 == _BYTES and at + 1 < end and payload[at + 1] < 0x80:  # noqa: PLR2004
            start = at + 2  # the commonest by far: a short record of a low number
            at = start + payload[at + 1]
        elif tag & 0x87 == _NUMBER and at + 2 < end and min(payload[at + 1 : at + 3]) < 0x80:  # noqa: PLR2004
            at += 2 + (payload[at + 1] >> 7)  # or a number that is not large
            continue
        else:
            tag, start, at = _record(name, payload, at)
            if tag & 7 != _BYTES:
                continue
        number = tag >> 3
        if number in numbers:
            if number in found:
                raise WireError(f"{name}: field {number} comes twice")
            found[number] = view[start:at]
            kept.append(view[kept_from:began])
            kept_from = at
    if at > end:
        raise WireError(f"{name}: cannot be parsed (it ends within a field)")
    if at < end:
        raise LimitExceeded(f"{name}: more than {MAX_RECORDS} fields")
    return _parsed(cls, b"".join([*kept, view[kept_from:]])), found


def _parsed(cls: type[M], payload: bytes) -> M:
    message = cls()
    try:
        message.ParseFromString(payload)
    except (DecodeError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{cls.DESCRIPTOR.name}: cannot be parsed ({error})") from error
    return message


def _check_records(name: str, payload: bytes) -> None:
    at, end = 0, len(payload)
    for _ in range(MAX_RECORDS):
        if at == end:
            return
        if payload[at] & 0x87 == _BYTES and at + 1 < end and payload[at + 1] < 0x80:  # noqa: PLR2004
            at += 2 + payload[at + 1]  # the commonest by far: a short record of a low number
        else:
            at = _after_record(name, payload, at)
        if at > end:
            raise WireError(f"{name}: cannot be parsed (it ends within a field)")
    if at < end:
        raise LimitExceeded(f"{name}: more than {MAX_RECORDS} fields")


def _record(name: str, payload: bytes | memoryview, began: int) -> tuple[int, int, int]:
    """The tag of a record, where what it holds starts, and where the next one does."""
    tag, at = _varint(name, payload, began)
    if tag & 7 in _GROUP:
        raise WireError(f"{name}: cannot be parsed (it has a group)")
    if tag & 7 != _BYTES:
        return tag, at, _after_record(name, payload, began)
    length, start = _varint(name, payload, at)
    return tag, start, start + length


def _after_record(name: str, payload: bytes | memoryview, at: int) -> int:
    """Where the next record starts; what is in groups counts as records too."""
    tag, at = _varint(name, payload, at)
    match tag & 7:
        case 0:
            return _varint(name, payload, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(name, payload, at)
            return at + length
        case 3 | 4:
            return at
        case 5:
            return at + 4
        case kind:
            raise WireError(f"{name}: cannot be parsed (wire type {kind})")


def number_bytes(value: int) -> bytes:
    """A number as protobuf writes it."""
    written = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to the byte
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def bytes_field(number: int, size: int) -> bytes:
    """What protobuf writes before the `size` bytes of a field."""
    return number_bytes(number << 3 | _BYTES) + number_bytes(size)


def _varint(name: str, payload: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    end = len(payload)
    while at < end and shift < _MAX_SHIFT:
        byte = payload[at]
        at += 1
        if byte < 0x80:  # noqa: PLR2004 - the last of it
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise WireError(f"{name}: cannot be parsed (a number does not end)")
