from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    D_TYPE_UNSPECIFIED: _ClassVar[DType]
    D_TYPE_BOOL: _ClassVar[DType]
    D_TYPE_UINT8: _ClassVar[DType]
    D_TYPE_INT8: _ClassVar[DType]
    D_TYPE_UINT16: _ClassVar[DType]
    D_TYPE_INT16: _ClassVar[DType]
    D_TYPE_INT32: _ClassVar[DType]
    D_TYPE_INT64: _ClassVar[DType]
    D_TYPE_FLOAT16: _ClassVar[DType]
    D_TYPE_FLOAT32: _ClassVar[DType]
    D_TYPE_FLOAT64: _ClassVar[DType]
    D_TYPE_UINT32: _ClassVar[DType]
    D_TYPE_UINT64: _ClassVar[DType]

class TensorCoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_CODING_UNSPECIFIED: _ClassVar[TensorCoding]
    TENSOR_CODING_BIT_PLANES: _ClassVar[TensorCoding]
    TENSOR_CODING_DIFFERENCE: _ClassVar[TensorCoding]
    TENSOR_CODING_WHOLE: _ClassVar[TensorCoding]
    TENSOR_CODING_GAPS: _ClassVar[TensorCoding]
D_TYPE_UNSPECIFIED: DType
D_TYPE_BOOL: DType
D_TYPE_UINT8: DType
D_TYPE_INT8: DType
D_TYPE_UINT16: DType
D_TYPE_INT16: DType
D_TYPE_INT32: DType
D_TYPE_INT64: DType
D_TYPE_FLOAT16: DType
D_TYPE_FLOAT32: DType
D_TYPE_FLOAT64: DType
D_TYPE_UINT32: DType
D_TYPE_UINT64: DType
TENSOR_CODING_UNSPECIFIED: TensorCoding
TENSOR_CODING_BIT_PLANES: TensorCoding
TENSOR_CODING_DIFFERENCE: TensorCoding
TENSOR_CODING_WHOLE: TensorCoding
TENSOR_CODING_GAPS: TensorCoding

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TensorSet(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class TensorDelta(_message.Message):
    __slots__ = ("name", "coding", "dtype", "shape", "stream_bytes", "data", "gap_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODING_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    coding: TensorCoding
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    stream_bytes: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    gap_bytes: int
    def __init__(self, name: _Optional[str] = ..., coding: _Optional[_Union[TensorCoding, str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., stream_bytes: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., gap_bytes: _Optional[int] = ...) -> None: ...

class TensorSetDelta(_message.Message):
    __slots__ = ("tensors", "removed")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorDelta]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorDelta, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...
