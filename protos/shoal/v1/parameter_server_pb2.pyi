from shoal.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PayloadKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAYLOAD_KIND_UNSPECIFIED: _ClassVar[PayloadKind]
    PAYLOAD_KIND_DELTA: _ClassVar[PayloadKind]
PAYLOAD_KIND_UNSPECIFIED: PayloadKind
PAYLOAD_KIND_DELTA: PayloadKind

class WatchRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "have_version", "have_digest", "accepts_delta", "partial_digest", "partial_bytes", "accepts_compressed_delta")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HAVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_DELTA_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_COMPRESSED_DELTA_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    have_version: int
    have_digest: bytes
    accepts_delta: bool
    partial_digest: bytes
    partial_bytes: int
    accepts_compressed_delta: bool
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., have_version: _Optional[int] = ..., have_digest: _Optional[bytes] = ..., accepts_delta: bool = ..., partial_digest: _Optional[bytes] = ..., partial_bytes: _Optional[int] = ..., accepts_compressed_delta: bool = ...) -> None: ...

class GetGraphRequest(_message.Message):
    __slots__ = ("fleet", "digest")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    digest: bytes
    def __init__(self, fleet: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("fleet", "version")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    version: int
    def __init__(self, fleet: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("version", "total_bytes", "offset", "data", "kind", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    total_bytes: int
    offset: int
    data: bytes
    kind: PayloadKind
    digest: bytes
    def __init__(self, version: _Optional[int] = ..., total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., kind: _Optional[_Union[PayloadKind, str]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ReportActiveRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "run_id", "version", "digest", "handled_version")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HANDLED_VERSION_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    version: int
    digest: bytes
    handled_version: int
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., handled_version: _Optional[int] = ...) -> None: ...

class ReportActiveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("watch", "active")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    watch: WatchRequest
    active: ReportActiveRequest
    def __init__(self, watch: _Optional[_Union[WatchRequest, _Mapping]] = ..., active: _Optional[_Union[ReportActiveRequest, _Mapping]] = ...) -> None: ...
