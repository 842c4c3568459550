from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ObservationStatistics(_message.Message):
    __slots__ = ("count", "mean", "squares")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: bytes
    squares: bytes
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[bytes] = ..., squares: _Optional[bytes] = ...) -> None: ...

class ActingNormalizer(_message.Message):
    __slots__ = ("policy_version", "shift", "gain")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    shift: bytes
    gain: bytes
    def __init__(self, policy_version: _Optional[int] = ..., shift: _Optional[bytes] = ..., gain: _Optional[bytes] = ...) -> None: ...
