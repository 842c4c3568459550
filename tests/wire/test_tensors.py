"""Tensors keep their dtype, shape and bits, and nothing malformed gets through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import SHAPES, arrays, dtypes

from shoal.errors import LimitExceeded, WireError
from shoal.tensors import (
    COPIED_BYTES,
    DTYPES,
    MAX_AXES,
    MAX_TENSOR_BYTES,
    decode_tensor,
    decode_tensors,
    encode_tensor,
    encode_tensors,
    read_tensor,
    tensor_pieces,
)
from shoal.v1 import tensor_pb2 as pb

CODES = st.sampled_from([0, *DTYPES, 11, 99])


@st.composite
def any_array(draw: st.DrawFn) -> NDArray[Any]:
    shape = draw(SHAPES | st.lists(st.integers(0, 2), max_size=MAX_AXES).map(tuple))
    return draw(arrays(shape, draw(dtypes)))


def same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Bit for bit, NaN included."""
    return (
        left.dtype.newbyteorder("<") == right.dtype.newbyteorder("<")
        and left.shape == right.shape
        and left.astype(right.dtype).tobytes() == right.tobytes()
    )


@given(any_array())
def test_every_array_round_trips_bit_for_bit(array: NDArray[Any]) -> None:
    decoded = decode_tensor(encode_tensor("x", array))
    assert same(decoded, array)
    assert not decoded.flags.writeable


@given(any_array())
def test_order_and_endianness_in_memory_do_not_matter(array: NDArray[Any]) -> None:
    wanted = encode_tensor("x", array)
    assert encode_tensor("x", np.asfortranarray(array)) == wanted or array.ndim == 0
    assert encode_tensor("x", array.astype(array.dtype.newbyteorder(">"))) == wanted


def test_a_strided_view_travels_as_its_values() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::-3]
    assert same(decode_tensor(encode_tensor("x", array)), array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array(["text"]),
        np.zeros(2, np.complex64),
        np.zeros(2, np.longdouble),
        np.zeros(2, [("a", "i4")]),
        np.array(["2020-01-01"], "M8[D]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_refuses_a_dtype_that_cannot_travel(array: NDArray[Any]) -> None:
    with pytest.raises(WireError, match="cannot travel"):
        encode_tensor("x", array)


def test_refuses_too_many_axes() -> None:
    with pytest.raises(WireError, match="axes"):
        encode_tensor("x", np.zeros((1,) * (MAX_AXES + 1), np.uint8))


@given(
    CODES,
    st.lists(st.sampled_from([0, 1, 2, 3, 255, 2**31, 2**32 - 1]), max_size=MAX_AXES + 1),
    st.binary(max_size=64),
)
def test_dtype_shape_and_bytes_agree_or_it_is_a_wire_error(
    code: int, shape: list[int], data: bytes
) -> None:
    message = pb.Tensor(name="x", shape=shape, data=data)
    message.ParseFromString(message.SerializeToString() + bytes([0x10, code]))
    try:
        array = decode_tensor(message)
    except WireError:
        return
    assert array.shape == tuple(shape)
    assert array.nbytes == len(data)
    assert array.tobytes() == data


@pytest.mark.parametrize(
    "shape",
    [
        (2**32 - 1, 2**32 - 1),
        (2**32 - 1,) * MAX_AXES,
        (MAX_TENSOR_BYTES + 1,),
        (0, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        (2**32 - 1, 0, 2**32 - 1, 2**32 - 1),
    ],
)
def test_a_shape_that_lies_is_a_wire_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError):
        decode_tensor(pb.Tensor(name="x", dtype=pb.D_TYPE_UINT8, shape=shape, data=b""))


@pytest.mark.parametrize("data", [b"\x02", b"\x00\x02\x01", b"\x01\xff"])
def test_a_bool_is_zero_or_one(data: bytes) -> None:
    with pytest.raises(WireError, match="bool"):
        decode_tensor(pb.Tensor(dtype=pb.D_TYPE_BOOL, shape=[len(data)], data=data))


@given(st.dictionaries(st.text(max_size=8), any_array(), max_size=4))
def test_sets_round_trip_and_do_not_depend_on_insertion(tensors: dict[str, NDArray[Any]]) -> None:
    data = encode_tensors(tensors)
    assert encode_tensors(dict(reversed(tensors.items()))) == data
    assert data == b"".join(tensor_pieces(tensors))
    said = [encode_tensor(name, tensors[name]) for name in sorted(tensors)]
    assert data == pb.TensorSet(tensors=said).SerializeToString(deterministic=True)
    decoded = decode_tensors(data)
    assert decoded.keys() == tensors.keys()
    assert all(same(decoded[name], array) for name, array in tensors.items())


@pytest.mark.parametrize("names", [["a", "a"], ["b", "a"], ["", ""]])
def test_names_are_sorted_and_unique(names: list[str]) -> None:
    tensors = [encode_tensor(name, np.zeros(1, np.float32)) for name in names]
    with pytest.raises(WireError, match="sorted and unique"):
        decode_tensors(pb.TensorSet(tensors=tensors).SerializeToString())


def test_refuses_a_set_over_its_limit() -> None:
    data = encode_tensors({"w": np.zeros(100, np.float32)})
    assert decode_tensors(data, max_bytes=len(data))
    with pytest.raises(LimitExceeded):
        decode_tensors(data, max_bytes=len(data) - 1)


@given(st.sampled_from(sorted(map(str, DTYPES.values()))), st.integers(0, 3), st.integers(0, 9))
def test_a_large_tensor_is_read_where_it_lies_and_is_the_same(
    dtype: str, more: int, name_bytes: int
) -> None:
    count = COPIED_BYTES // np.dtype(dtype).itemsize + more
    array = (np.arange(count) % 2).astype(dtype)
    data = encode_tensor("n" * name_bytes, array).SerializeToString()
    read = read_tensor(data)
    assert read.dtype == array.dtype
    assert not read.flags.writeable
    assert read.flags.aligned
    np.testing.assert_array_equal(read, array)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_large_tensor_whose_head_is_damaged_is_read_as_protobuf_reads_it_or_refused(
    at: int, byte: int
) -> None:
    data = bytearray(
        encode_tensor("pixels", np.zeros(COPIED_BYTES + 1, np.uint8)).SerializeToString()
    )
    data[at] = byte
    try:
        read = read_tensor(bytes(data))
    except WireError:
        return
    message = pb.Tensor.FromString(bytes(data))
    np.testing.assert_array_equal(read, decode_tensor(message))


@given(any_array(), st.sampled_from(["", "x"]), st.data())
def test_a_tensor_with_a_damaged_byte_is_read_as_protobuf_reads_it_or_refused(
    array: NDArray[Any], name: str, drawn: st.DataObject
) -> None:
    sent = bytearray(encode_tensor(name, array).SerializeToString())
    assert same(read_tensor(bytes(sent)), array)
    for _ in range(drawn.draw(st.integers(0, 2)) if sent else 0):
        sent[drawn.draw(st.integers(0, min(len(sent) - 1, 24)))] = drawn.draw(st.integers(0, 255))
    try:
        read = read_tensor(memoryview(bytes(sent)))
    except WireError:
        return
    assert same(read, decode_tensor(pb.Tensor.FromString(bytes(sent))))
    assert not read.flags.writeable


def test_a_field_that_may_come_once_and_comes_twice_is_refused() -> None:
    data = encode_tensor("", np.zeros(COPIED_BYTES, np.uint8)).SerializeToString()
    with pytest.raises(WireError, match="comes twice"):
        read_tensor(data + b"\x22\x00")


def test_a_group_is_refused_where_fields_are_left_in_place() -> None:
    data = encode_tensor("", np.zeros(COPIED_BYTES, np.uint8)).SerializeToString()
    with pytest.raises(WireError, match="group"):
        read_tensor(data + b"\x7b\x7c")
