from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
    __slots__ = ("fleet", "device_id", "run_id", "finished_task_id", "failed", "reason", "episodes", "steps")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    device_id: str
    run_id: bytes
    finished_task_id: int
    failed: bool
    reason: str
    episodes: int
    steps: int
    def __init__(self, fleet: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[bytes] = ..., finished_task_id: _Optional[int] = ..., failed: bool = ..., reason: _Optional[str] = ..., episodes: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class NextTaskResponse(_message.Message):
    __slots__ = ("has_task", "task", "retry_s")
    HAS_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RETRY_S_FIELD_NUMBER: _ClassVar[int]
    has_task: bool
    task: Task
    retry_s: float
    def __init__(self, has_task: bool = ..., task: _Optional[_Union[Task, _Mapping]] = ..., retry_s: _Optional[float] = ...) -> None: ...
