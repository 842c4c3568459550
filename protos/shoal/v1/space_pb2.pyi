from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BoxSpace(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: _tensor_pb2.Tensor
    high: _tensor_pb2.Tensor
    def __init__(self, low: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., high: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class DiscreteSpace(_message.Message):
    __slots__ = ("n", "start")
    N_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    n: int
    start: int
    def __init__(self, n: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class Space(_message.Message):
    __slots__ = ("box", "discrete")
    BOX_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    box: BoxSpace
    discrete: DiscreteSpace
    def __init__(self, box: _Optional[_Union[BoxSpace, _Mapping]] = ..., discrete: _Optional[_Union[DiscreteSpace, _Mapping]] = ...) -> None: ...

class EnvSpec(_message.Message):
    __slots__ = ("env_id", "observation", "action", "reward_threshold", "max_episode_steps")
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REWARD_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    env_id: str
    observation: Space
    action: Space
    reward_threshold: float
    max_episode_steps: int
    def __init__(self, env_id: _Optional[str] = ..., observation: _Optional[_Union[Space, _Mapping]] = ..., action: _Optional[_Union[Space, _Mapping]] = ..., reward_threshold: _Optional[float] = ..., max_episode_steps: _Optional[int] = ...) -> None: ...
