"""Hostile payloads, each with a valid checksum. A test runs this file in a process of its own:

python bombs.py NAME    prints what was raised, and by how many bytes the process grew at its peak
"""

from __future__ import annotations

import resource
import struct
import sys
import zlib
from collections.abc import Callable

import numpy as np

from shoal import zstd
from shoal.delta import decode_delta
from shoal.errors import WireError
from shoal.policy import MAX_BUNDLE_BYTES, decode_golden
from shoal.ranges import Ranges
from shoal.tensors import decode_tensor, decode_tensors
from shoal.trajectory import MAX_BODY_BYTES, decode_chunk
from shoal.v1 import device_pb2, tensor_pb2
from shoal.wire import MAX_CONTROL_BYTES, frame, unframe

if sys.version_info >= (3, 14):
    from compression import zstd as binding
else:
    from backports import zstd as binding

MOST_BYTES = 4 << 30
KIB = 1024
MIB = 1024 * 1024


def compress(pattern: bytes, size: int) -> bytes:
    """Compresses `size` bytes of a repeated pattern without ever holding them."""
    block = pattern * (MIB // len(pattern))
    parameter = binding.CompressionParameter
    compressor = binding.ZstdCompressor(
        options={parameter.compression_level: 1, parameter.checksum_flag: 1}
    )
    compressor.set_pledged_input_size(size)
    out = [compressor.compress(block) for _ in range(size // len(block))]
    rest = size % len(block)
    return b"".join([*out, compressor.compress(block[:rest]), compressor.flush()])


def lie(body: bytes, size: int) -> bytes:
    """The same zstd frame, saying another size: magic, descriptor, then the size (RFC 8878)."""
    descriptor = body[4]
    single_segment, flag = descriptor >> 5 & 1, descriptor >> 6
    start = 5 + (0 if single_segment else 1)
    assert flag == 2, "a size of four bytes"
    return body[:start] + struct.pack("<I", size) + body[start + 4 :]


def header_of(size: int) -> bytes:
    """A zstd frame that says a size of eight bytes, and holds one empty block."""
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", size) + b"\x01\x00\x00"


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tensor_of_shape(shape: list[int]) -> None:
    decode_tensor(tensor_pb2.Tensor(dtype=tensor_pb2.D_TYPE_FLOAT64, shape=shape))


def _delta_of(*, shape: list[int], data: bytes = b"") -> None:
    whole = tensor_pb2.TensorDelta(
        name="w",
        coding=tensor_pb2.TENSOR_CODING_WHOLE,
        dtype=tensor_pb2.D_TYPE_INT8,
        shape=shape,
        stream_bytes=[len(data)],
        data=data,
    )
    delta = frame(tensor_pb2.TensorSetDelta(tensors=[whole]))
    decode_delta({}, delta, max_bytes=MAX_BUNDLE_BYTES)


def _framed(payload: bytes) -> bytes:
    head = frame(tensor_pb2.TensorSetDelta())
    return head[:4] + struct.pack("<I", zlib.crc32(payload)) + payload


def _many_spans() -> None:
    spans = [tensor_pb2.Span(start=2 * n, stop=2 * n + 1) for n in range(20_000)]
    data = frame(device_pb2.Ack(runs=[device_pb2.RunAck(settled=spans)]))
    Ranges.from_pb(unframe(device_pb2.Ack, data).runs[0].settled)


HALF = MAX_BODY_BYTES // 2
BOMBS: dict[str, Callable[[], object]] = {
    "says_an_exabyte": lambda: decode_chunk(header_of(2**60)),
    "says_the_largest_size": lambda: decode_chunk(header_of(2**64 - 3)),
    "says_one_byte_too_many": lambda: decode_chunk(header_of(MAX_BODY_BYTES + 1)),
    "says_the_limit_and_holds_nothing": lambda: decode_chunk(header_of(MAX_BODY_BYTES)),
    "holds_too_much": lambda: decode_chunk(compress(b"\x00", 1024 * MIB)),
    "holds_more_than_it_says": lambda: decode_chunk(lie(compress(b"\x00", 512 * MIB), 100_000)),
    "holds_less_than_it_says": lambda: decode_chunk(lie(compress(b"\x00", MIB), 2 * MIB)),
    "zeros": lambda: decode_chunk(compress(b"\x00", MAX_BODY_BYTES)),
    "empty_episodes": lambda: decode_chunk(compress(b"\x6a\x00", MAX_BODY_BYTES)),
    "unknown_fields": lambda: decode_chunk(compress(b"\xa8\x06\x00\x00"[:3] * 2, HALF // 6 * 6)),
    "unknown_messages": lambda: decode_chunk(compress(b"\x82\x7d\x00\x82\x7d\x00", HALF // 6 * 6)),
    "columns_again_and_again": lambda: decode_chunk(compress(b"\x2a\x00", MAX_BODY_BYTES)),
    "a_shape_without_end": lambda: decode_chunk(
        zstd.compress(field(5, b"\x18\x00" * (HALF // 2 - 8)), level=1, checksum=True)
    ),
    "nested_groups": lambda: decode_chunk(compress(b"\x0b", MIB)),
    "empty_tensors": lambda: decode_tensors(b"\x0a\x00" * (MAX_BUNDLE_BYTES // 2)),
    "empty_golden_tensors": lambda: decode_golden(b"\x0a\x00" * (MAX_BUNDLE_BYTES // 2)),
    "a_shape_of_exabytes": lambda: _tensor_of_shape([2**32 - 1] * 8),
    "a_shape_of_nothing_times_exabytes": lambda: _tensor_of_shape([0] + [2**32 - 1] * 7),
    "a_delta_of_exabytes": lambda: _delta_of(shape=[2**32 - 1] * 8),
    "a_delta_over_the_limit": lambda: _delta_of(shape=[MAX_BUNDLE_BYTES + 1]),
    "a_delta_whose_stream_says_an_exabyte": lambda: _delta_of(shape=[MIB], data=header_of(2**60)),
    "a_delta_whose_stream_holds_too_much": lambda: _delta_of(
        shape=[MIB], data=compress(b"\x01", 1024 * MIB)
    ),
    "a_delta_whose_stream_holds_more_than_it_says": lambda: _delta_of(
        shape=[100_000], data=lie(compress(b"\x01", 512 * MIB), 100_000)
    ),
    "a_delta_of_many_tensors": lambda: decode_delta(
        {}, _framed(b"\x0a\x00" * MIB), max_bytes=MAX_BUNDLE_BYTES
    ),
    "a_delta_of_many_streams": lambda: decode_delta(
        {},
        _framed(field(1, field(5, bytes(MIB)))),
        max_bytes=MAX_BUNDLE_BYTES,
    ),
    "many_spans": _many_spans,
    "empty_messages_in_a_frame": lambda: _ack_of(b"\x12\x00"),
    "a_frame_over_its_limit": lambda: unframe(device_pb2.Ack, bytes(MAX_CONTROL_BYTES + 1)),
}


def _ack_of(pattern: bytes) -> None:
    message = device_pb2.Ack()
    message.ParseFromString(pattern * (MAX_CONTROL_BYTES // len(pattern) - 8))
    for run in unframe(device_pb2.Ack, frame(message)).runs:
        Ranges.from_pb(run.settled)
    raise WireError("nothing is wrong with many empty messages but their number")


def peak_bytes() -> int:
    """The most memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def main(name: str) -> None:
    """Sets one bomb off, where it cannot take the machine's memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    np.zeros(1).tobytes()
    before = peak_bytes()
    try:
        BOMBS[name]()
    except WireError as error:
        print("WireError", peak_bytes() - before, str(error)[:300])  # noqa: T201 a program
    else:
        print("nothing", peak_bytes() - before, "was raised")  # noqa: T201 a program


if __name__ == "__main__":
    main(sys.argv[1])
