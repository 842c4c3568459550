"""Tensors on the wire: dtype and shape always travel with the bytes. Never pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import LimitExceeded, WireError
from shoal.v1 import tensor_pb2 as pb
from shoal.wire import number_bytes, parse, take_fields

Array = NDArray[Any]  # any dtype of DTYPES; narrowed where it is known

MAX_TENSOR_BYTES = 256 * 1024 * 1024
MAX_AXES = 8
COPIED_BYTES = 64 * 1024
"""A tensor of no more than this costs less to copy than to take apart."""
DTYPES: Final[Mapping[pb.DType, np.dtype[Any]]] = {
    pb.D_TYPE_BOOL: np.dtype("?"),
    pb.D_TYPE_UINT8: np.dtype("u1"),
    pb.D_TYPE_INT8: np.dtype("i1"),
    pb.D_TYPE_UINT16: np.dtype("<u2"),
    pb.D_TYPE_INT16: np.dtype("<i2"),
    pb.D_TYPE_INT32: np.dtype("<i4"),
    pb.D_TYPE_INT64: np.dtype("<i8"),
    pb.D_TYPE_FLOAT16: np.dtype("<f2"),
    pb.D_TYPE_FLOAT32: np.dtype("<f4"),
    pb.D_TYPE_FLOAT64: np.dtype("<f8"),
    pb.D_TYPE_UINT32: np.dtype("<u4"),
    pb.D_TYPE_UINT64: np.dtype("<u8"),
}
CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
_DTYPE_TAG, _SHAPE_TAG, _DATA_TAG = 0x10, 0x1A, 0x22
_TENSOR_TAG: Final = 0x0A  # of a set
_KNOWN_HEADS: Final = 256
"""A fleet's chunks have the same few tensors again and again."""


class _Kind(NamedTuple):
    """What the bytes of a tensor are: its dtype and shape, whose size is theirs."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def dtype_code(name: str, array: Array) -> pb.DType:
    """What names an array's dtype on the wire.

    Raises:
        WireError: The dtype is not one of `DTYPES`, or there are too many axes.
    """
    code = CODES.get(array.dtype) or CODES.get(array.dtype.newbyteorder("<"))
    if code is None:
        known = ", ".join(str(dtype) for dtype in CODES)
        raise WireError(f"tensor {name!r}: dtype {array.dtype} cannot travel; use one of {known}")
    if array.ndim > MAX_AXES:
        raise WireError(f"tensor {name!r}: {array.ndim} axes, the limit is {MAX_AXES}")
    return code


def encode_tensor(name: str, array: Array) -> pb.Tensor:
    """Encodes an array; the values keep their dtype.

    Raises:
        WireError: The dtype is not one of `DTYPES`, or there are too many axes.
    """
    code = dtype_code(name, array)
    data = array.astype(DTYPES[code], order="C", copy=False).tobytes()
    return pb.Tensor(name=name, dtype=code, shape=array.shape, data=data)


def decode_tensor(message: pb.Tensor) -> Array:
    """Decodes a tensor into a read-only array `[*shape]` that shares the message's bytes.

    Raises:
        LimitExceeded: The shape needs more than `MAX_TENSOR_BYTES`.
        WireError: The dtype is unknown, or shape and size do not agree.
    """
    return _array(message, message.data)


def read_tensor(payload: bytes | memoryview) -> Array:
    """Reads a serialized tensor into a read-only array `[*shape]` that shares these very bytes.

    Pictures are never copied; what is small, or does not lie as a processor likes it, is.

    Raises:
        LimitExceeded: The shape needs more than `MAX_TENSOR_BYTES`.
        WireError: It is malformed, the dtype is unknown, or shape and size do not agree.
    """
    start = _data_start(payload)
    if start:  # as `encode_tensor` writes one without a name
        kind = _kind_of_head(bytes(payload[:start]), len(payload) - start)
        data = payload[start:]
        return _laid_out("", kind, bytes(data) if len(payload) <= COPIED_BYTES else data)
    if len(payload) <= COPIED_BYTES:
        return decode_tensor(parse(pb.Tensor, bytes(payload)))
    message, found = take_fields(pb.Tensor, payload, (pb.Tensor.DATA_FIELD_NUMBER,))
    return _array(message, found.get(pb.Tensor.DATA_FIELD_NUMBER, b""))


def _array(message: pb.Tensor, data: bytes | memoryview) -> Array:
    return _laid_out(message.name, _kind_of(message, len(data)), data)


def _kind_of(message: pb.Tensor, data_bytes: int) -> _Kind:
    dtype = DTYPES.get(message.dtype)
    if dtype is None:
        raise WireError(f"tensor {message.name[:80]!r}: unknown dtype code {message.dtype}")
    if len(message.shape) > MAX_AXES:
        raise WireError(f"tensor {message.name[:80]!r}: {len(message.shape)} axes")
    size = dtype.itemsize
    for axis in message.shape:
        size *= axis
        if size > MAX_TENSOR_BYTES:
            raise LimitExceeded(f"tensor {message.name[:80]!r}: over {MAX_TENSOR_BYTES} bytes")
    if size != data_bytes:
        raise WireError(
            f"tensor {message.name[:80]!r}: shape {tuple(message.shape)} of {dtype} needs {size} "
            f"bytes, there are {data_bytes}"
        )
    return _Kind(dtype, tuple(message.shape))


@lru_cache(_KNOWN_HEADS)
def _kind_of_head(head: bytes, data_bytes: int) -> _Kind:
    """What the bytes are that follow a head, which ends with the number of them."""
    shape_end = _SHAPE_AT + 1 + head[_SHAPE_AT]
    return _kind_of(parse(pb.Tensor, head[:shape_end]), data_bytes)


_SHAPE_AT: Final = 3
"""Where a head says how long the shape is."""


def _data_start(payload: bytes | memoryview) -> int:
    """Where the data begins in what is dtype, shape and data in this order; 0 in all else."""
    end = len(payload)
    if end <= _SHAPE_AT or payload[0] != _DTYPE_TAG or payload[2] != _SHAPE_TAG:
        return 0
    if payload[1] > 0x7F or payload[_SHAPE_AT] > 0x7F:  # noqa: PLR2004 - numbers of one byte
        return 0
    at = _SHAPE_AT + 1 + payload[_SHAPE_AT]
    if at >= end or payload[at] != _DATA_TAG:
        return 0
    size = shift = 0
    for start in range(at + 1, min(at + 6, end)):
        size |= (payload[start] & 0x7F) << shift
        if payload[start] <= 0x7F:  # noqa: PLR2004
            return start + 1 if start + 1 + size == end else 0
        shift += 7
    return 0


def _laid_out(name: str, kind: _Kind, data: bytes | memoryview) -> Array:
    """The array, read-only, that shares these bytes where they lie as a processor likes it."""
    try:
        array = np.frombuffer(data, kind.dtype).reshape(kind.shape)
    except ValueError as error:  # nothing times more than an array can address
        raise WireError(f"tensor {name[:80]!r}: shape {kind.shape}") from error
    if kind.dtype.kind == "b" and array.size and np.maximum.reduce(array.view(np.uint8), None) > 1:
        raise WireError(f"tensor {name[:80]!r}: a bool must be 0 or 1")
    if array.flags.aligned:
        return array
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def all_finite(array: Array) -> bool:
    """Whether an array of floats has no NaN and no infinity."""
    finite = np.isfinite(array).ravel()
    return not finite.size or bool(finite[finite.argmin()])  # it ends at the first that is not


def tensor_pieces(tensors: Mapping[str, Array]) -> list[bytes | memoryview]:
    """What `encode_tensors` joins: the arrays' own bytes, uncopied, and what goes before each.

    Enough to hash them, or to write them to a file.

    Raises:
        WireError: A dtype is not one of `DTYPES`, or there are too many axes.
    """
    pieces: list[bytes | memoryview] = []
    for name in sorted(tensors):
        wire = tensors[name]
        code = dtype_code(name, wire)
        if wire.dtype not in CODES or not wire.flags.c_contiguous:
            wire = wire.astype(DTYPES[code], order="C", copy=False)
        pieces.append(_head(name, wire.dtype, wire.shape))
        if wire.size:
            pieces.append((wire if wire.ndim == 1 else wire.reshape(-1)).data)
    return pieces


def encode_tensors(tensors: Mapping[str, Array]) -> bytes:
    """Serializes named tensors, sorted by name: equal tensors give equal bytes.

    Raises:
        WireError: A dtype is not one of `DTYPES`, or there are too many axes.
    """
    return b"".join(tensor_pieces(tensors))


@lru_cache(_KNOWN_HEADS)
def _head(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What goes before the bytes of a tensor in a `TensorSet`."""
    head = pb.Tensor(name=name, dtype=CODES[dtype], shape=shape).SerializeToString()
    size = math.prod(shape) * dtype.itemsize
    if size:
        head += bytes([_DATA_TAG]) + number_bytes(size)
    return bytes([_TENSOR_TAG]) + number_bytes(len(head) + size) + head


def decode_tensors(data: bytes, *, max_bytes: int = MAX_TENSOR_BYTES) -> dict[str, Array]:
    """Reads what `encode_tensors` wrote.

    Raises:
        LimitExceeded: `data` is longer than `max_bytes`.
        WireError: It is malformed, or names are not sorted and unique.
    """
    if len(data) > max_bytes:
        raise LimitExceeded(f"tensors: {len(data)} bytes, the limit is {max_bytes}")
    message = parse(pb.TensorSet, data)
    names = [tensor.name for tensor in message.tensors]
    if names != sorted(set(names)):
        raise WireError("tensors: names must be sorted and unique")
    return {tensor.name: decode_tensor(tensor) for tensor in message.tensors}
