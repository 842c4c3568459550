from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrialState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRIAL_STATE_UNSPECIFIED: _ClassVar[TrialState]
    TRIAL_STATE_ON_TRIAL: _ClassVar[TrialState]
    TRIAL_STATE_COMMITTED: _ClassVar[TrialState]
TRIAL_STATE_UNSPECIFIED: TrialState
TRIAL_STATE_ON_TRIAL: TrialState
TRIAL_STATE_COMMITTED: TrialState

class SlotReport(_message.Message):
    __slots__ = ("slot", "bundle_version", "digest", "trial", "deaths", "held", "last")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    slot: str
    bundle_version: str
    digest: bytes
    trial: TrialState
    deaths: int
    held: str
    last: str
    def __init__(self, slot: _Optional[str] = ..., bundle_version: _Optional[str] = ..., digest: _Optional[bytes] = ..., trial: _Optional[_Union[TrialState, str]] = ..., deaths: _Optional[int] = ..., held: _Optional[str] = ..., last: _Optional[str] = ...) -> None: ...
