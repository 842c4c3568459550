from shoal.v1 import slot_pb2 as _slot_pb2
from shoal.v1 import space_pb2 as _space_pb2
from shoal.v1 import tensor_pb2 as _tensor_pb2
from shoal.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_ONLINE: _ClassVar[DeviceState]
    DEVICE_STATE_OFFLINE_EXPECTED: _ClassVar[DeviceState]
    DEVICE_STATE_OFFLINE_LOST: _ClassVar[DeviceState]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_ERROR: _ClassVar[Severity]
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_ONLINE: DeviceState
DEVICE_STATE_OFFLINE_EXPECTED: DeviceState
DEVICE_STATE_OFFLINE_LOST: DeviceState
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
SEVERITY_ERROR: Severity

class Hardware(_message.Message):
    __slots__ = ("machine", "model", "cpus", "memory_bytes")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    machine: str
    model: str
    cpus: int
    memory_bytes: int
    def __init__(self, machine: _Optional[str] = ..., model: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("device_id", "run_id", "state", "sent_unix_ms", "agent_version", "python_version", "onnxruntime_version", "hardware", "env_spec", "envs", "reason", "slot")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    ONNXRUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    ENV_SPEC_FIELD_NUMBER: _ClassVar[int]
    ENVS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    run_id: bytes
    state: DeviceState
    sent_unix_ms: int
    agent_version: str
    python_version: str
    onnxruntime_version: str
    hardware: Hardware
    env_spec: _space_pb2.EnvSpec
    envs: int
    reason: str
    slot: _slot_pb2.SlotReport
    def __init__(self, device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., state: _Optional[_Union[DeviceState, str]] = ..., sent_unix_ms: _Optional[int] = ..., agent_version: _Optional[str] = ..., python_version: _Optional[str] = ..., onnxruntime_version: _Optional[str] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ..., env_spec: _Optional[_Union[_space_pb2.EnvSpec, _Mapping]] = ..., envs: _Optional[int] = ..., reason: _Optional[str] = ..., slot: _Optional[_Union[_slot_pb2.SlotReport, _Mapping]] = ...) -> None: ...

class RunLedger(_message.Message):
    __slots__ = ("run_id", "produced", "spooled", "dropped", "expired")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    run_id: bytes
    produced: int
    spooled: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Span]
    dropped: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Span]
    expired: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Span]
    def __init__(self, run_id: _Optional[bytes] = ..., produced: _Optional[int] = ..., spooled: _Optional[_Iterable[_Union[_tensor_pb2.Span, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[_tensor_pb2.Span, _Mapping]]] = ..., expired: _Optional[_Iterable[_Union[_tensor_pb2.Span, _Mapping]]] = ...) -> None: ...

class Appetite(_message.Message):
    __slots__ = ("oldest_version", "steps_per_s", "sent_seq", "learner_run_id", "codecs")
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    LEARNER_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    oldest_version: int
    steps_per_s: float
    sent_seq: int
    learner_run_id: bytes
    codecs: _containers.RepeatedScalarFieldContainer[_trajectory_pb2.Codec]
    def __init__(self, oldest_version: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., sent_seq: _Optional[int] = ..., learner_run_id: _Optional[bytes] = ..., codecs: _Optional[_Iterable[_Union[_trajectory_pb2.Codec, str]]] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("device_id", "run_id", "sent_unix_ms", "uptime_s", "env_steps", "episodes", "steps_per_s", "active_version", "active_digest", "swaps", "swap_ms_p99", "deadline_misses", "rss_bytes", "bytes_up", "bytes_down", "spool_bytes", "resent_chunks", "ledger", "policy_rejections", "learner_ack_age_s", "control_hz_achieved", "active_precision", "precision_reason", "int8_us", "fp32_us", "wanted_steps_per_s", "oldest_version", "updates_pushed", "updates_applied", "gradient_chunks_dropped", "slot", "int8_dynamic_us")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    SWAP_MS_P99_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MISSES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    SPOOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESENT_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    POLICY_REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ACK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CONTROL_HZ_ACHIEVED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_PRECISION_FIELD_NUMBER: _ClassVar[int]
    PRECISION_REASON_FIELD_NUMBER: _ClassVar[int]
    INT8_US_FIELD_NUMBER: _ClassVar[int]
    FP32_US_FIELD_NUMBER: _ClassVar[int]
    WANTED_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    UPDATES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CHUNKS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INT8_DYNAMIC_US_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    run_id: bytes
    sent_unix_ms: int
    uptime_s: float
    env_steps: int
    episodes: int
    steps_per_s: float
    active_version: int
    active_digest: bytes
    swaps: int
    swap_ms_p99: float
    deadline_misses: int
    rss_bytes: int
    bytes_up: int
    bytes_down: int
    spool_bytes: int
    resent_chunks: int
    ledger: _containers.RepeatedCompositeFieldContainer[RunLedger]
    policy_rejections: int
    learner_ack_age_s: float
    control_hz_achieved: float
    active_precision: str
    precision_reason: str
    int8_us: float
    fp32_us: float
    wanted_steps_per_s: float
    oldest_version: int
    updates_pushed: int
    updates_applied: int
    gradient_chunks_dropped: int
    slot: _slot_pb2.SlotReport
    int8_dynamic_us: float
    def __init__(self, device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., sent_unix_ms: _Optional[int] = ..., uptime_s: _Optional[float] = ..., env_steps: _Optional[int] = ..., episodes: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., active_version: _Optional[int] = ..., active_digest: _Optional[bytes] = ..., swaps: _Optional[int] = ..., swap_ms_p99: _Optional[float] = ..., deadline_misses: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., spool_bytes: _Optional[int] = ..., resent_chunks: _Optional[int] = ..., ledger: _Optional[_Iterable[_Union[RunLedger, _Mapping]]] = ..., policy_rejections: _Optional[int] = ..., learner_ack_age_s: _Optional[float] = ..., control_hz_achieved: _Optional[float] = ..., active_precision: _Optional[str] = ..., precision_reason: _Optional[str] = ..., int8_us: _Optional[float] = ..., fp32_us: _Optional[float] = ..., wanted_steps_per_s: _Optional[float] = ..., oldest_version: _Optional[int] = ..., updates_pushed: _Optional[int] = ..., updates_applied: _Optional[int] = ..., gradient_chunks_dropped: _Optional[int] = ..., slot: _Optional[_Union[_slot_pb2.SlotReport, _Mapping]] = ..., int8_dynamic_us: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("device_id", "run_id", "event_seq", "sent_unix_ms", "severity", "name", "fields", "message")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    run_id: bytes
    event_seq: int
    sent_unix_ms: int
    severity: Severity
    name: str
    fields: _containers.ScalarMap[str, str]
    message: str
    def __init__(self, device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., event_seq: _Optional[int] = ..., sent_unix_ms: _Optional[int] = ..., severity: _Optional[_Union[Severity, str]] = ..., name: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RunAck(_message.Message):
    __slots__ = ("run_id", "settled")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    run_id: bytes
    settled: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Span]
    def __init__(self, run_id: _Optional[bytes] = ..., settled: _Optional[_Iterable[_Union[_tensor_pb2.Span, _Mapping]]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("device_id", "runs")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    runs: _containers.RepeatedCompositeFieldContainer[RunAck]
    def __init__(self, device_id: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[RunAck, _Mapping]]] = ...) -> None: ...
