from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_WAITING: _ClassVar[TaskState]
    TASK_STATE_RUNNING: _ClassVar[TaskState]
    TASK_STATE_DONE: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
    TASK_STATE_CLOSED: _ClassVar[TaskState]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_WAITING: TaskState
TASK_STATE_RUNNING: TaskState
TASK_STATE_DONE: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_CLOSED: TaskState

class Task(_message.Message):
    __slots__ = ("task_id", "env_id", "env_kwargs", "seed", "max_episodes", "max_steps", "name")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_KWARGS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    env_id: str
    env_kwargs: bytes
    seed: int
    max_episodes: int
    max_steps: int
    name: str
    def __init__(self, task_id: _Optional[int] = ..., env_id: _Optional[str] = ..., env_kwargs: _Optional[bytes] = ..., seed: _Optional[int] = ..., max_episodes: _Optional[int] = ..., max_steps: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class NextTaskRequest(_message.Message):
    __slots__ = ("fleet", "device_id", "run_id", "finished_task_id", "failed", "reason", "episodes", "steps", "return_mean")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    finished_task_id: int
    failed: bool
    reason: str
    episodes: int
    steps: int
    return_mean: float
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., finished_task_id: _Optional[int] = ..., failed: bool = ..., reason: _Optional[str] = ..., episodes: _Optional[int] = ..., steps: _Optional[int] = ..., return_mean: _Optional[float] = ...) -> None: ...

class NextTaskResponse(_message.Message):
    __slots__ = ("has_task", "task", "retry_s")
    HAS_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RETRY_S_FIELD_NUMBER: _ClassVar[int]
    has_task: bool
    task: Task
    retry_s: float
    def __init__(self, has_task: bool = ..., task: _Optional[_Union[Task, _Mapping]] = ..., retry_s: _Optional[float] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("task", "state", "stage", "device_id", "attempts", "failures", "losses", "episodes", "steps", "return_mean", "steps_per_s", "reason", "age_s")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RETURN_MEAN_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    task: Task
    state: TaskState
    stage: int
    device_id: str
    attempts: int
    failures: int
    losses: int
    episodes: int
    steps: int
    return_mean: float
    steps_per_s: float
    reason: str
    age_s: float
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., stage: _Optional[int] = ..., device_id: _Optional[str] = ..., attempts: _Optional[int] = ..., failures: _Optional[int] = ..., losses: _Optional[int] = ..., episodes: _Optional[int] = ..., steps: _Optional[int] = ..., return_mean: _Optional[float] = ..., steps_per_s: _Optional[float] = ..., reason: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("fleet",)
    FLEET_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    def __init__(self, fleet: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ...) -> None: ...
