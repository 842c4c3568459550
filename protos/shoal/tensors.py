"""Tensors on the wire: dtype and shape always travel with the bytes. Never pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import LimitExceeded, WireError
from shoal.v1 import tensor_pb2 as pb
from shoal.wire import parse, take_fields

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
}
_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}


def dtype_code(name: str, array: Array) -> pb.DType:
    """What names an array's dtype on the wire.

    Raises:
        WireError: The dtype is not one of `DTYPES`, or there are too many axes.
    """
    code = _CODES.get(array.dtype.newbyteorder("<"))
    if code is None:
        known = ", ".join(str(dtype) for dtype in _CODES)
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
    if len(payload) <= COPIED_BYTES:
        return decode_tensor(parse(pb.Tensor, bytes(payload)))
    message, found = take_fields(pb.Tensor, payload, (pb.Tensor.DATA_FIELD_NUMBER,))
    array = _array(message, found.get(pb.Tensor.DATA_FIELD_NUMBER, b""))
    if array.flags.aligned:
        return array
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _array(message: pb.Tensor, data: bytes | memoryview) -> Array:
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
    if size != len(data):
        raise WireError(
            f"tensor {message.name[:80]!r}: shape {tuple(message.shape)} of {dtype} needs {size} "
            f"bytes, there are {len(data)}"
        )
    if dtype.kind == "b" and size and np.frombuffer(data, np.uint8).max() > 1:
        raise WireError(f"tensor {message.name[:80]!r}: a bool must be 0 or 1")
    try:
        return np.frombuffer(data, dtype).reshape(tuple(message.shape))
    except ValueError as error:  # nothing times more than an array can address
        raise WireError(f"tensor {message.name[:80]!r}: shape {tuple(message.shape)}") from error


def encode_tensors(tensors: Mapping[str, Array]) -> bytes:
    """Serializes named tensors, sorted by name: equal tensors give equal bytes."""
    encoded = [encode_tensor(name, tensors[name]) for name in sorted(tensors)]
    return pb.TensorSet(tensors=encoded).SerializeToString(deterministic=True)


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
