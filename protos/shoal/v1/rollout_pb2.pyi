from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RolloutKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_KIND_UNSPECIFIED: _ClassVar[RolloutKind]
    ROLLOUT_KIND_POLICY: _ClassVar[RolloutKind]
    ROLLOUT_KIND_AGENT: _ClassVar[RolloutKind]

class RolloutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_STATE_UNSPECIFIED: _ClassVar[RolloutState]
    ROLLOUT_STATE_STARTING: _ClassVar[RolloutState]
    ROLLOUT_STATE_ACTIVE: _ClassVar[RolloutState]
    ROLLOUT_STATE_PAUSED: _ClassVar[RolloutState]
    ROLLOUT_STATE_PROMOTED: _ClassVar[RolloutState]
    ROLLOUT_STATE_ABORTED: _ClassVar[RolloutState]

class RolloutProgress(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_PROGRESS_UNSPECIFIED: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_OFFERED: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_STARTED: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_SUCCEEDED: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_FAILED: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_TIMED_OUT: _ClassVar[RolloutProgress]
    ROLLOUT_PROGRESS_LEFT: _ClassVar[RolloutProgress]

class RolloutCommand(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_COMMAND_UNSPECIFIED: _ClassVar[RolloutCommand]
    ROLLOUT_COMMAND_PAUSE: _ClassVar[RolloutCommand]
    ROLLOUT_COMMAND_RESUME: _ClassVar[RolloutCommand]
    ROLLOUT_COMMAND_ABORT: _ClassVar[RolloutCommand]
ROLLOUT_KIND_UNSPECIFIED: RolloutKind
ROLLOUT_KIND_POLICY: RolloutKind
ROLLOUT_KIND_AGENT: RolloutKind
ROLLOUT_STATE_UNSPECIFIED: RolloutState
ROLLOUT_STATE_STARTING: RolloutState
ROLLOUT_STATE_ACTIVE: RolloutState
ROLLOUT_STATE_PAUSED: RolloutState
ROLLOUT_STATE_PROMOTED: RolloutState
ROLLOUT_STATE_ABORTED: RolloutState
ROLLOUT_PROGRESS_UNSPECIFIED: RolloutProgress
ROLLOUT_PROGRESS_OFFERED: RolloutProgress
ROLLOUT_PROGRESS_STARTED: RolloutProgress
ROLLOUT_PROGRESS_SUCCEEDED: RolloutProgress
ROLLOUT_PROGRESS_FAILED: RolloutProgress
ROLLOUT_PROGRESS_TIMED_OUT: RolloutProgress
ROLLOUT_PROGRESS_LEFT: RolloutProgress
ROLLOUT_COMMAND_UNSPECIFIED: RolloutCommand
ROLLOUT_COMMAND_PAUSE: RolloutCommand
ROLLOUT_COMMAND_RESUME: RolloutCommand
ROLLOUT_COMMAND_ABORT: RolloutCommand

class RolloutWave(_message.Message):
    __slots__ = ("devices", "share")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    devices: int
    share: float
    def __init__(self, devices: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...

class RolloutPlan(_message.Message):
    __slots__ = ("kind", "version", "waves", "episodes", "wave_timeout_s", "max_failures", "min_failures", "devices", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAVES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    WAVE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MAX_FAILURES_FIELD_NUMBER: _ClassVar[int]
    MIN_FAILURES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: RolloutKind
    version: str
    waves: _containers.RepeatedCompositeFieldContainer[RolloutWave]
    episodes: int
    wave_timeout_s: float
    max_failures: float
    min_failures: int
    devices: str
    reason: str
    def __init__(self, kind: _Optional[_Union[RolloutKind, str]] = ..., version: _Optional[str] = ..., waves: _Optional[_Iterable[_Union[RolloutWave, _Mapping]]] = ..., episodes: _Optional[int] = ..., wave_timeout_s: _Optional[float] = ..., max_failures: _Optional[float] = ..., min_failures: _Optional[int] = ..., devices: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RolloutMember(_message.Message):
    __slots__ = ("device_id", "wave", "progress", "reason", "episodes", "age_s")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    wave: int
    progress: RolloutProgress
    reason: str
    episodes: int
    age_s: float
    def __init__(self, device_id: _Optional[str] = ..., wave: _Optional[int] = ..., progress: _Optional[_Union[RolloutProgress, str]] = ..., reason: _Optional[str] = ..., episodes: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class RolloutNote(_message.Message):
    __slots__ = ("at_s", "name", "reason")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    name: str
    reason: str
    def __init__(self, at_s: _Optional[float] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("rollout_id", "plan", "state", "reason", "wave", "members", "history", "candidate_version", "baseline_version", "undo_version", "ran_s", "created_unix_ms", "devices", "asked", "succeeded", "failed", "timed_out")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASELINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNDO_VERSION_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    rollout_id: int
    plan: RolloutPlan
    state: RolloutState
    reason: str
    wave: int
    members: _containers.RepeatedCompositeFieldContainer[RolloutMember]
    history: _containers.RepeatedCompositeFieldContainer[RolloutNote]
    candidate_version: int
    baseline_version: int
    undo_version: int
    ran_s: float
    created_unix_ms: int
    devices: int
    asked: int
    succeeded: int
    failed: int
    timed_out: int
    def __init__(self, rollout_id: _Optional[int] = ..., plan: _Optional[_Union[RolloutPlan, _Mapping]] = ..., state: _Optional[_Union[RolloutState, str]] = ..., reason: _Optional[str] = ..., wave: _Optional[int] = ..., members: _Optional[_Iterable[_Union[RolloutMember, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[RolloutNote, _Mapping]]] = ..., candidate_version: _Optional[int] = ..., baseline_version: _Optional[int] = ..., undo_version: _Optional[int] = ..., ran_s: _Optional[float] = ..., created_unix_ms: _Optional[int] = ..., devices: _Optional[int] = ..., asked: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., timed_out: _Optional[int] = ...) -> None: ...

class StartRolloutRequest(_message.Message):
    __slots__ = ("fleet", "plan", "dry_run")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    plan: RolloutPlan
    dry_run: bool
    def __init__(self, fleet: _Optional[str] = ..., plan: _Optional[_Union[RolloutPlan, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class WatchRolloutRequest(_message.Message):
    __slots__ = ("fleet", "rollout_id")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    rollout_id: int
    def __init__(self, fleet: _Optional[str] = ..., rollout_id: _Optional[int] = ...) -> None: ...

class CommandRolloutRequest(_message.Message):
    __slots__ = ("fleet", "rollout_id", "command", "reason")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    rollout_id: int
    command: RolloutCommand
    reason: str
    def __init__(self, fleet: _Optional[str] = ..., rollout_id: _Optional[int] = ..., command: _Optional[_Union[RolloutCommand, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class AgentBundle(_message.Message):
    __slots__ = ("version", "arch", "python", "digest", "bundle_bytes", "bundle_digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: str
    arch: str
    python: str
    digest: bytes
    bundle_bytes: int
    bundle_digest: bytes
    def __init__(self, version: _Optional[str] = ..., arch: _Optional[str] = ..., python: _Optional[str] = ..., digest: _Optional[bytes] = ..., bundle_bytes: _Optional[int] = ..., bundle_digest: _Optional[bytes] = ...) -> None: ...

class BundlePart(_message.Message):
    __slots__ = ("total_bytes", "offset", "data")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    offset: int
    data: bytes
    def __init__(self, total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AddBundlePart(_message.Message):
    __slots__ = ("fleet", "part")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    part: BundlePart
    def __init__(self, fleet: _Optional[str] = ..., part: _Optional[_Union[BundlePart, _Mapping]] = ...) -> None: ...

class ListBundlesRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class ListBundlesResponse(_message.Message):
    __slots__ = ("bundles",)
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[AgentBundle]
    def __init__(self, bundles: _Optional[_Iterable[_Union[AgentBundle, _Mapping]]] = ...) -> None: ...

class WatchDirectiveRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "run_id")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ...) -> None: ...

class PolicyDirective(_message.Message):
    __slots__ = ("rollout_id", "version", "digest", "episodes")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    rollout_id: int
    version: int
    digest: bytes
    episodes: int
    def __init__(self, rollout_id: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., episodes: _Optional[int] = ...) -> None: ...

class AgentDirective(_message.Message):
    __slots__ = ("rollout_id", "bundle", "reason", "go_back")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GO_BACK_FIELD_NUMBER: _ClassVar[int]
    rollout_id: int
    bundle: AgentBundle
    reason: str
    go_back: bool
    def __init__(self, rollout_id: _Optional[int] = ..., bundle: _Optional[_Union[AgentBundle, _Mapping]] = ..., reason: _Optional[str] = ..., go_back: bool = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("policy", "agent")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyDirective
    agent: AgentDirective
    def __init__(self, policy: _Optional[_Union[PolicyDirective, _Mapping]] = ..., agent: _Optional[_Union[AgentDirective, _Mapping]] = ...) -> None: ...

class GetBundleRequest(_message.Message):
    __slots__ = ("fleet", "digest", "offset")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    digest: bytes
    offset: int
    def __init__(self, fleet: _Optional[str] = ..., digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class ReportOutcomeRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "run_id", "rollout_id", "progress", "digest", "episodes", "reason")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    rollout_id: int
    progress: RolloutProgress
    digest: bytes
    episodes: int
    reason: str
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., rollout_id: _Optional[int] = ..., progress: _Optional[_Union[RolloutProgress, str]] = ..., digest: _Optional[bytes] = ..., episodes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportOutcomeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
