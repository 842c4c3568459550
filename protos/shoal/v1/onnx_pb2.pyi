from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnnxModel(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: OnnxGraph
    def __init__(self, graph: _Optional[_Union[OnnxGraph, _Mapping]] = ...) -> None: ...

class OnnxGraph(_message.Message):
    __slots__ = ("node", "initializer", "input")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedCompositeFieldContainer[OnnxNode]
    initializer: _containers.RepeatedCompositeFieldContainer[OnnxTensor]
    input: _containers.RepeatedCompositeFieldContainer[OnnxValue]
    def __init__(self, node: _Optional[_Iterable[_Union[OnnxNode, _Mapping]]] = ..., initializer: _Optional[_Iterable[_Union[OnnxTensor, _Mapping]]] = ..., input: _Optional[_Iterable[_Union[OnnxValue, _Mapping]]] = ...) -> None: ...

class OnnxValue(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: OnnxType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[OnnxType, _Mapping]] = ...) -> None: ...

class OnnxType(_message.Message):
    __slots__ = ("tensor_type",)
    TENSOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    tensor_type: OnnxTensorType
    def __init__(self, tensor_type: _Optional[_Union[OnnxTensorType, _Mapping]] = ...) -> None: ...

class OnnxTensorType(_message.Message):
    __slots__ = ("elem_type", "shape")
    ELEM_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    elem_type: int
    shape: OnnxShape
    def __init__(self, elem_type: _Optional[int] = ..., shape: _Optional[_Union[OnnxShape, _Mapping]] = ...) -> None: ...

class OnnxShape(_message.Message):
    __slots__ = ("dim",)
    DIM_FIELD_NUMBER: _ClassVar[int]
    dim: _containers.RepeatedCompositeFieldContainer[OnnxDimension]
    def __init__(self, dim: _Optional[_Iterable[_Union[OnnxDimension, _Mapping]]] = ...) -> None: ...

class OnnxDimension(_message.Message):
    __slots__ = ("dim_value",)
    DIM_VALUE_FIELD_NUMBER: _ClassVar[int]
    dim_value: int
    def __init__(self, dim_value: _Optional[int] = ...) -> None: ...

class OnnxNode(_message.Message):
    __slots__ = ("input", "output", "op_type", "attribute", "domain")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedScalarFieldContainer[str]
    output: _containers.RepeatedScalarFieldContainer[str]
    op_type: str
    attribute: _containers.RepeatedCompositeFieldContainer[OnnxAttribute]
    domain: str
    def __init__(self, input: _Optional[_Iterable[str]] = ..., output: _Optional[_Iterable[str]] = ..., op_type: _Optional[str] = ..., attribute: _Optional[_Iterable[_Union[OnnxAttribute, _Mapping]]] = ..., domain: _Optional[str] = ...) -> None: ...

class OnnxAttribute(_message.Message):
    __slots__ = ("name", "i", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    i: int
    type: int
    def __init__(self, name: _Optional[str] = ..., i: _Optional[int] = ..., type: _Optional[int] = ...) -> None: ...

class OnnxTensor(_message.Message):
    __slots__ = ("dims", "data_type", "name", "raw_data", "external_data", "data_location")
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_DATA_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    data_type: int
    name: str
    raw_data: bytes
    external_data: _containers.RepeatedCompositeFieldContainer[OnnxEntry]
    data_location: int
    def __init__(self, dims: _Optional[_Iterable[int]] = ..., data_type: _Optional[int] = ..., name: _Optional[str] = ..., raw_data: _Optional[bytes] = ..., external_data: _Optional[_Iterable[_Union[OnnxEntry, _Mapping]]] = ..., data_location: _Optional[int] = ...) -> None: ...

class OnnxEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
