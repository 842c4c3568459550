from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DelegationPurpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELEGATION_PURPOSE_UNSPECIFIED: _ClassVar[DelegationPurpose]
    DELEGATION_PURPOSE_POLICIES: _ClassVar[DelegationPurpose]
    DELEGATION_PURPOSE_BUNDLES: _ClassVar[DelegationPurpose]
DELEGATION_PURPOSE_UNSPECIFIED: DelegationPurpose
DELEGATION_PURPOSE_POLICIES: DelegationPurpose
DELEGATION_PURPOSE_BUNDLES: DelegationPurpose

class Delegation(_message.Message):
    __slots__ = ("schema", "fleet", "public_key", "generation", "not_before_unix_s", "not_after_unix_s", "purposes")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PURPOSES_FIELD_NUMBER: _ClassVar[int]
    schema: int
    fleet: str
    public_key: bytes
    generation: int
    not_before_unix_s: int
    not_after_unix_s: int
    purposes: _containers.RepeatedScalarFieldContainer[DelegationPurpose]
    def __init__(self, schema: _Optional[int] = ..., fleet: _Optional[str] = ..., public_key: _Optional[bytes] = ..., generation: _Optional[int] = ..., not_before_unix_s: _Optional[int] = ..., not_after_unix_s: _Optional[int] = ..., purposes: _Optional[_Iterable[_Union[DelegationPurpose, str]]] = ...) -> None: ...

class SignedDelegation(_message.Message):
    __slots__ = ("delegation", "signature")
    DELEGATION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    delegation: bytes
    signature: bytes
    def __init__(self, delegation: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
