from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetCurveRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class CurvePoint(_message.Message):
    __slots__ = ("env_steps", "return_mean")
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    return_mean: float
    def __init__(self, env_steps: _Optional[int] = ..., return_mean: _Optional[float] = ...) -> None: ...

class LearningCurve(_message.Message):
    __slots__ = ("points", "env_id", "reward_threshold", "algorithm")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[CurvePoint]
    env_id: str
    reward_threshold: float
    algorithm: str
    def __init__(self, points: _Optional[_Iterable[_Union[CurvePoint, _Mapping]]] = ..., env_id: _Optional[str] = ..., reward_threshold: _Optional[float] = ..., algorithm: _Optional[str] = ...) -> None: ...
