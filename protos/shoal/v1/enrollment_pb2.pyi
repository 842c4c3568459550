from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ("challenge", "server_unix_ms", "fleet")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    SERVER_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    server_unix_ms: int
    fleet: str
    def __init__(self, challenge: _Optional[bytes] = ..., server_unix_ms: _Optional[int] = ..., fleet: _Optional[str] = ...) -> None: ...

class EnrollRequest(_message.Message):
    __slots__ = ("challenge", "csr", "token", "proof")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    csr: bytes
    token: str
    proof: bytes
    def __init__(self, challenge: _Optional[bytes] = ..., csr: _Optional[bytes] = ..., token: _Optional[str] = ..., proof: _Optional[bytes] = ...) -> None: ...

class EnrollResponse(_message.Message):
    __slots__ = ("enrolled", "retry_after_s")
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    enrolled: Enrolled
    retry_after_s: int
    def __init__(self, enrolled: _Optional[_Union[Enrolled, _Mapping]] = ..., retry_after_s: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("challenge", "certificate", "proof")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    certificate: bytes
    proof: bytes
    def __init__(self, challenge: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("enrolled",)
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    enrolled: Enrolled
    def __init__(self, enrolled: _Optional[_Union[Enrolled, _Mapping]] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("fleet", "device_id", "certificate_chain", "ca", "policy_public_key", "addresses")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    POLICY_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    certificate_chain: bytes
    ca: bytes
    policy_public_key: bytes
    addresses: Addresses
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., certificate_chain: _Optional[bytes] = ..., ca: _Optional[bytes] = ..., policy_public_key: _Optional[bytes] = ..., addresses: _Optional[_Union[Addresses, _Mapping]] = ...) -> None: ...

class Addresses(_message.Message):
    __slots__ = ("broker", "parameter_server", "enrollment")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_FIELD_NUMBER: _ClassVar[int]
    ENROLLMENT_FIELD_NUMBER: _ClassVar[int]
    broker: str
    parameter_server: str
    enrollment: str
    def __init__(self, broker: _Optional[str] = ..., parameter_server: _Optional[str] = ..., enrollment: _Optional[str] = ...) -> None: ...
