from shoal.v1 import device_pb2 as _device_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Health(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_UNSPECIFIED: _ClassVar[Health]
    HEALTH_ONLINE: _ClassVar[Health]
    HEALTH_DEGRADED: _ClassVar[Health]
    HEALTH_STALE: _ClassVar[Health]
    HEALTH_OFFLINE_EXPECTED: _ClassVar[Health]
    HEALTH_OFFLINE_LOST: _ClassVar[Health]
HEALTH_UNSPECIFIED: Health
HEALTH_ONLINE: Health
HEALTH_DEGRADED: Health
HEALTH_STALE: Health
HEALTH_OFFLINE_EXPECTED: Health
HEALTH_OFFLINE_LOST: Health

class Audit(_message.Message):
    __slots__ = ("produced", "trained", "expired", "dropped", "rejected", "in_flight", "balanced")
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    produced: int
    trained: int
    expired: int
    dropped: int
    rejected: int
    in_flight: int
    balanced: bool
    def __init__(self, produced: _Optional[int] = ..., trained: _Optional[int] = ..., expired: _Optional[int] = ..., dropped: _Optional[int] = ..., rejected: _Optional[int] = ..., in_flight: _Optional[int] = ..., balanced: bool = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("device_id", "health", "status", "status_age_s", "telemetry", "telemetry_age_s", "chunk_age_s", "audit", "lag_updates", "bytes_down_sent", "reasons", "gradients", "task", "active_version", "active_digest")
    class GradientsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_AGE_S_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CHUNK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    LAG_UPDATES_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_SENT_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    health: Health
    status: _device_pb2.Status
    status_age_s: float
    telemetry: _device_pb2.Telemetry
    telemetry_age_s: float
    chunk_age_s: float
    audit: Audit
    lag_updates: int
    bytes_down_sent: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    gradients: _containers.ScalarMap[str, int]
    task: str
    active_version: int
    active_digest: bytes
    def __init__(self, device_id: _Optional[str] = ..., health: _Optional[_Union[Health, str]] = ..., status: _Optional[_Union[_device_pb2.Status, _Mapping]] = ..., status_age_s: _Optional[float] = ..., telemetry: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., telemetry_age_s: _Optional[float] = ..., chunk_age_s: _Optional[float] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ..., lag_updates: _Optional[int] = ..., bytes_down_sent: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ..., gradients: _Optional[_Mapping[str, int]] = ..., task: _Optional[str] = ..., active_version: _Optional[int] = ..., active_digest: _Optional[bytes] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class ListDevicesResponse(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    def __init__(self, devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ("event", "age_s")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    event: _device_pb2.Event
    age_s: float
    def __init__(self, event: _Optional[_Union[_device_pb2.Event, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class DescribeDeviceRequest(_message.Message):
    __slots__ = ("fleet", "device_id")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ...) -> None: ...

class DescribeDeviceResponse(_message.Message):
    __slots__ = ("device", "events")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    device: Device
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ...) -> None: ...

class PolicyInfo(_message.Message):
    __slots__ = ("version", "digest", "graph_digest", "updates", "precision", "kl_quantization", "created_unix_ms", "bundle_bytes", "devices_active", "reason", "age_s", "agreement", "kl_staleness", "tensors_bytes", "fp32_bytes", "active_devices", "delegation_generation", "delegation_not_after_unix_s", "pinned")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KL_QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    KL_STALENESS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FP32_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_NOT_AFTER_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: bytes
    graph_digest: bytes
    updates: int
    precision: str
    kl_quantization: float
    created_unix_ms: int
    bundle_bytes: int
    devices_active: int
    reason: str
    age_s: float
    agreement: float
    kl_staleness: float
    tensors_bytes: int
    fp32_bytes: int
    active_devices: _containers.RepeatedScalarFieldContainer[str]
    delegation_generation: int
    delegation_not_after_unix_s: int
    pinned: bool
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[bytes] = ..., graph_digest: _Optional[bytes] = ..., updates: _Optional[int] = ..., precision: _Optional[str] = ..., kl_quantization: _Optional[float] = ..., created_unix_ms: _Optional[int] = ..., bundle_bytes: _Optional[int] = ..., devices_active: _Optional[int] = ..., reason: _Optional[str] = ..., age_s: _Optional[float] = ..., agreement: _Optional[float] = ..., kl_staleness: _Optional[float] = ..., tensors_bytes: _Optional[int] = ..., fp32_bytes: _Optional[int] = ..., active_devices: _Optional[_Iterable[str]] = ..., delegation_generation: _Optional[int] = ..., delegation_not_after_unix_s: _Optional[int] = ..., pinned: bool = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[PolicyInfo]
    def __init__(self, policies: _Optional[_Iterable[_Union[PolicyInfo, _Mapping]]] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class DeviceAudit(_message.Message):
    __slots__ = ("device_id", "audit", "telemetry_age_s")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_AGE_S_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    audit: Audit
    telemetry_age_s: float
    def __init__(self, device_id: _Optional[str] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ..., telemetry_age_s: _Optional[float] = ...) -> None: ...

class AuditResponse(_message.Message):
    __slots__ = ("total", "devices")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    total: Audit
    devices: _containers.RepeatedCompositeFieldContainer[DeviceAudit]
    def __init__(self, total: _Optional[_Union[Audit, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[DeviceAudit, _Mapping]]] = ...) -> None: ...

class WatchTrainingRequest(_message.Message):
    __slots__ = ("fleet", "interval_ms")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    interval_ms: int
    def __init__(self, fleet: _Optional[str] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class Training(_message.Message):
    __slots__ = ("env_steps", "episodes", "return_mean", "return_window", "length_mean", "updates", "policy_version", "lag_p50", "lag_p99", "lag_max", "precision", "kl_quantization", "kl_staleness", "bytes_up", "bytes_down", "bytes_down_fp32", "uptime_s", "steps_per_s", "entropy", "value_loss", "policy_loss", "explained_variance", "replay_steps", "audit", "devices_online", "learner_state", "counters", "learner_problem")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    RETURN_WINDOW_FIELD_NUMBER: _ClassVar[int]
    LENGTH_MEAN_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAG_P50_FIELD_NUMBER: _ClassVar[int]
    LAG_P99_FIELD_NUMBER: _ClassVar[int]
    LAG_MAX_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    KL_QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KL_STALENESS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FP32_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    POLICY_LOSS_FIELD_NUMBER: _ClassVar[int]
    EXPLAINED_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_STEPS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_ONLINE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    env_steps: int
    episodes: int
    return_mean: float
    return_window: int
    length_mean: float
    updates: int
    policy_version: int
    lag_p50: float
    lag_p99: float
    lag_max: float
    precision: str
    kl_quantization: float
    kl_staleness: float
    bytes_up: int
    bytes_down: int
    bytes_down_fp32: int
    uptime_s: float
    steps_per_s: float
    entropy: float
    value_loss: float
    policy_loss: float
    explained_variance: float
    replay_steps: int
    audit: Audit
    devices_online: int
    learner_state: str
    counters: _containers.ScalarMap[str, int]
    learner_problem: str
    def __init__(self, env_steps: _Optional[int] = ..., episodes: _Optional[int] = ..., return_mean: _Optional[float] = ..., return_window: _Optional[int] = ..., length_mean: _Optional[float] = ..., updates: _Optional[int] = ..., policy_version: _Optional[int] = ..., lag_p50: _Optional[float] = ..., lag_p99: _Optional[float] = ..., lag_max: _Optional[float] = ..., precision: _Optional[str] = ..., kl_quantization: _Optional[float] = ..., kl_staleness: _Optional[float] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., bytes_down_fp32: _Optional[int] = ..., uptime_s: _Optional[float] = ..., steps_per_s: _Optional[float] = ..., entropy: _Optional[float] = ..., value_loss: _Optional[float] = ..., policy_loss: _Optional[float] = ..., explained_variance: _Optional[float] = ..., replay_steps: _Optional[int] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ..., devices_online: _Optional[int] = ..., learner_state: _Optional[str] = ..., counters: _Optional[_Mapping[str, int]] = ..., learner_problem: _Optional[str] = ...) -> None: ...
