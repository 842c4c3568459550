from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_ZSTD: _ClassVar[Codec]
    CODEC_COLUMNS: _ClassVar[Codec]
CODEC_UNSPECIFIED: Codec
CODEC_ZSTD: Codec
CODEC_COLUMNS: Codec

class Episode(_message.Message):
    __slots__ = ("env", "step", "total_return", "length")
    ENV_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_RETURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    env: int
    step: int
    total_return: float
    length: int
    def __init__(self, env: _Optional[int] = ..., step: _Optional[int] = ..., total_return: _Optional[float] = ..., length: _Optional[int] = ...) -> None: ...

class TrajectoryChunk(_message.Message):
    __slots__ = ("spec_fingerprint", "policy_version", "policy_digest", "first_step", "observations", "actions", "log_probs", "rewards", "terminated", "truncated", "final_index", "final_observations", "episodes", "initial_state", "priorities", "episode_returns", "episode_lengths")
    SPEC_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    FINAL_INDEX_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURNS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    spec_fingerprint: bytes
    policy_version: int
    policy_digest: bytes
    first_step: int
    observations: _tensor_pb2.Tensor
    actions: _tensor_pb2.Tensor
    log_probs: _tensor_pb2.Tensor
    rewards: _tensor_pb2.Tensor
    terminated: _tensor_pb2.Tensor
    truncated: _tensor_pb2.Tensor
    final_index: _tensor_pb2.Tensor
    final_observations: _tensor_pb2.Tensor
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    initial_state: _tensor_pb2.Tensor
    priorities: _tensor_pb2.Tensor
    episode_returns: _tensor_pb2.Tensor
    episode_lengths: _tensor_pb2.Tensor
    def __init__(self, spec_fingerprint: _Optional[bytes] = ..., policy_version: _Optional[int] = ..., policy_digest: _Optional[bytes] = ..., first_step: _Optional[int] = ..., observations: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., log_probs: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., rewards: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., terminated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., truncated: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., final_index: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., final_observations: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., initial_state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., priorities: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., episode_returns: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., episode_lengths: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class TrajectoryEnvelope(_message.Message):
    __slots__ = ("device_id", "run_id", "seq", "codec", "raw_bytes", "body", "oldest_seq")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    run_id: bytes
    seq: int
    codec: Codec
    raw_bytes: int
    body: bytes
    oldest_seq: int
    def __init__(self, device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., seq: _Optional[int] = ..., codec: _Optional[_Union[Codec, str]] = ..., raw_bytes: _Optional[int] = ..., body: _Optional[bytes] = ..., oldest_seq: _Optional[int] = ...) -> None: ...
