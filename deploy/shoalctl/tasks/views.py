"""What an operator sees of tasks: the server's messages as items, and items as columns. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from shoal.v1 import dispatcher_pb2
from shoalctl.output import NOTHING, Column, Item, Listing, Value, duration


def task_list(tasks: Iterable[dispatcher_pb2.TaskInfo]) -> Listing:
    """`shoal tasks ls`."""
    return Listing(
        schema="shoal.v1.TaskList",
        items=[task_item(task) for task in tasks],
        columns=_COLUMNS,
        empty="no tasks: devices step their own environments; [[tasks]] in learner.toml adds some",
    )


def task_item(info: dispatcher_pb2.TaskInfo) -> dict[str, Value]:
    """One task."""
    task = info.task
    return {
        "name": task.name,
        "task_id": task.task_id,
        "state": dispatcher_pb2.TaskState.Name(info.state).removeprefix("TASK_STATE_").lower(),
        "stage": info.stage,
        "device_id": info.device_id,
        "env_id": task.env_id,
        "env_kwargs": _kwargs(task.env_kwargs),
        "seed": task.seed if task.HasField("seed") else None,
        "max_episodes": task.max_episodes,
        "max_steps": task.max_steps,
        "steps_per_s": info.steps_per_s,
        "attempts": info.attempts,
        "failures": info.failures,
        "losses": info.losses,
        "episodes": info.episodes,
        "steps": info.steps,
        "return_mean": info.return_mean if info.episodes else None,
        "reason": info.reason,
        "age_s": info.age_s,
    }


def _kwargs(text: bytes) -> Value:
    try:
        kwargs: Value = json.loads(text or b"{}")
    except ValueError:
        return None
    return kwargs


def _text(item: Item, key: str) -> str:
    value = item[key]
    return NOTHING if value is None or value == "" else str(value)


def _rounded(item: Item, key: str, digits: int) -> str:
    value = item[key]
    return f"{value:.{digits}f}" if isinstance(value, int | float) else NOTHING


def _count(title: str, key: str, *, wide: bool = False) -> Column:
    return Column(title, lambda item: _text(item, key), wide=wide, right=True)


def _age(item: Item) -> str:
    value = item["age_s"]
    return duration(value if isinstance(value, int | float) else None)


_COLUMNS = (
    Column("NAME", lambda item: _text(item, "name")),
    _count("ID", "task_id"),
    Column("STATE", lambda item: _text(item, "state")),
    Column("DEVICE", lambda item: _text(item, "device_id")),
    Column("STEPS/S", lambda item: _rounded(item, "steps_per_s", 0), right=True),
    _count("ATTEMPTS", "attempts"),
    _count("STAGE", "stage", wide=True),
    _count("SEED", "seed", wide=True),
    Column("ENV", lambda item: _text(item, "env_id"), wide=True),
    _count("EPISODES", "episodes", wide=True),
    _count("STEPS", "steps", wide=True),
    Column("RETURN", lambda item: _rounded(item, "return_mean", 1), wide=True, right=True),
    _count("FAILURES", "failures", wide=True),
    _count("LOSSES", "losses", wide=True),
    Column("WHY", lambda item: _text(item, "reason"), wide=True),
    Column("AGE", _age, right=True),
)
