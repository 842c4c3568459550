from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ColumnForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_FORM_UNSPECIFIED: _ClassVar[ColumnForm]
    COLUMN_FORM_PLAIN: _ClassVar[ColumnForm]
    COLUMN_FORM_ZSTD: _ClassVar[ColumnForm]
    COLUMN_FORM_CONSTANT: _ClassVar[ColumnForm]
    COLUMN_FORM_BITS: _ClassVar[ColumnForm]
    COLUMN_FORM_PLANES: _ClassVar[ColumnForm]
COLUMN_FORM_UNSPECIFIED: ColumnForm
COLUMN_FORM_PLAIN: ColumnForm
COLUMN_FORM_ZSTD: ColumnForm
COLUMN_FORM_CONSTANT: ColumnForm
COLUMN_FORM_BITS: ColumnForm
COLUMN_FORM_PLANES: ColumnForm

class Column(_message.Message):
    __slots__ = ("dtype", "shape", "form", "stored")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    dtype: _tensor_pb2.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    form: ColumnForm
    stored: _tensor_pb2.DType
    def __init__(self, dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., form: _Optional[_Union[ColumnForm, str]] = ..., stored: _Optional[_Union[_tensor_pb2.DType, str]] = ...) -> None: ...

class ColumnLayout(_message.Message):
    __slots__ = ("steps", "envs", "observations", "actions", "log_probs", "rewards", "terminated", "truncated", "initial_state", "priorities", "final_observations", "episode_returns", "episode_lengths")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ENVS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURNS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    envs: int
    observations: Column
    actions: Column
    log_probs: Column
    rewards: Column
    terminated: Column
    truncated: Column
    initial_state: Column
    priorities: Column
    final_observations: Column
    episode_returns: Column
    episode_lengths: Column
    def __init__(self, steps: _Optional[int] = ..., envs: _Optional[int] = ..., observations: _Optional[_Union[Column, _Mapping]] = ..., actions: _Optional[_Union[Column, _Mapping]] = ..., log_probs: _Optional[_Union[Column, _Mapping]] = ..., rewards: _Optional[_Union[Column, _Mapping]] = ..., terminated: _Optional[_Union[Column, _Mapping]] = ..., truncated: _Optional[_Union[Column, _Mapping]] = ..., initial_state: _Optional[_Union[Column, _Mapping]] = ..., priorities: _Optional[_Union[Column, _Mapping]] = ..., final_observations: _Optional[_Union[Column, _Mapping]] = ..., episode_returns: _Optional[_Union[Column, _Mapping]] = ..., episode_lengths: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class ColumnChunk(_message.Message):
    __slots__ = ("spec_fingerprint", "policy_version", "policy_digest", "first_step", "layout", "ends", "frame_bytes", "data", "checksum")
    SPEC_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    spec_fingerprint: bytes
    policy_version: int
    policy_digest: bytes
    first_step: int
    layout: ColumnLayout
    ends: int
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    checksum: int
    def __init__(self, spec_fingerprint: _Optional[bytes] = ..., policy_version: _Optional[int] = ..., policy_digest: _Optional[bytes] = ..., first_step: _Optional[int] = ..., layout: _Optional[_Union[ColumnLayout, _Mapping]] = ..., ends: _Optional[int] = ..., frame_bytes: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...
