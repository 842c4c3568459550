from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PinPolicyRequest(_message.Message):
    __slots__ = ("fleet", "version", "pinned", "reason", "dry_run")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    version: int
    pinned: bool
    reason: str
    dry_run: bool
    def __init__(self, fleet: _Optional[str] = ..., version: _Optional[int] = ..., pinned: bool = ..., reason: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class PolicyPin(_message.Message):
    __slots__ = ("version", "pinned", "changed", "versions", "max_versions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    pinned: bool
    changed: bool
    versions: _containers.RepeatedScalarFieldContainer[int]
    max_versions: int
    def __init__(self, version: _Optional[int] = ..., pinned: bool = ..., changed: bool = ..., versions: _Optional[_Iterable[int]] = ..., max_versions: _Optional[int] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("fleet", "name", "dry_run")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    name: str
    dry_run: bool
    def __init__(self, fleet: _Optional[str] = ..., name: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("name", "path", "bytes", "updates", "policy_version", "env_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    bytes: int
    updates: int
    policy_version: int
    env_id: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., bytes: _Optional[int] = ..., updates: _Optional[int] = ..., policy_version: _Optional[int] = ..., env_id: _Optional[str] = ...) -> None: ...
