from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyManifest(_message.Message):
    __slots__ = ("fleet", "version", "updates", "graph_digest", "graph_bytes", "tensors_digest", "tensors_bytes", "golden_digest", "spec_fingerprint", "precision", "created_unix_ms", "kl_quantization", "reason", "noise_correlation", "agreement", "priority_gamma", "float_graph_digest")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRAPH_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENSORS_BYTES_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPEC_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    KL_QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOISE_CORRELATION_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_GAMMA_FIELD_NUMBER: _ClassVar[int]
    FLOAT_GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    version: int
    updates: int
    graph_digest: bytes
    graph_bytes: int
    tensors_digest: bytes
    tensors_bytes: int
    golden_digest: bytes
    spec_fingerprint: bytes
    precision: str
    created_unix_ms: int
    kl_quantization: float
    reason: str
    noise_correlation: float
    agreement: float
    priority_gamma: float
    float_graph_digest: bytes
    def __init__(self, fleet: _Optional[str] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., graph_digest: _Optional[bytes] = ..., graph_bytes: _Optional[int] = ..., tensors_digest: _Optional[bytes] = ..., tensors_bytes: _Optional[int] = ..., golden_digest: _Optional[bytes] = ..., spec_fingerprint: _Optional[bytes] = ..., precision: _Optional[str] = ..., created_unix_ms: _Optional[int] = ..., kl_quantization: _Optional[float] = ..., reason: _Optional[str] = ..., noise_correlation: _Optional[float] = ..., agreement: _Optional[float] = ..., priority_gamma: _Optional[float] = ..., float_graph_digest: _Optional[bytes] = ...) -> None: ...

class PolicyBundle(_message.Message):
    __slots__ = ("manifest", "signature", "tensors", "golden", "delegation")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    tensors: bytes
    golden: bytes
    delegation: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., tensors: _Optional[bytes] = ..., golden: _Optional[bytes] = ..., delegation: _Optional[bytes] = ...) -> None: ...

class PolicyDelta(_message.Message):
    __slots__ = ("manifest", "signature", "base_version", "base_digest", "tensors", "golden", "delegation", "same_delegation")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_FIELD_NUMBER: _ClassVar[int]
    SAME_DELEGATION_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    base_version: int
    base_digest: bytes
    tensors: bytes
    golden: bytes
    delegation: bytes
    same_delegation: bool
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., base_version: _Optional[int] = ..., base_digest: _Optional[bytes] = ..., tensors: _Optional[bytes] = ..., golden: _Optional[bytes] = ..., delegation: _Optional[bytes] = ..., same_delegation: bool = ...) -> None: ...
