"""`shoal tasks ls`: what is shown of a task."""

from __future__ import annotations

import io
import json

from shoal.v1 import dispatcher_pb2 as pb
from shoalctl.output import Format, write_listing
from shoalctl.tasks.views import task_item, task_list

TASK = pb.Task(
    task_id=7,
    name="pole",
    env_id="CartPole-v1",
    env_kwargs=b'{"length": 0.5}',
    seed=3,
    max_episodes=50,
)
RUNNING = pb.TaskInfo(
    task=TASK,
    state=pb.TASK_STATE_RUNNING,
    device_id="pi-1",
    attempts=2,
    losses=1,
    steps_per_s=812.4,
    reason="pi-2 was lost",
    age_s=65.0,
)
DONE = pb.TaskInfo(
    task=TASK, state=pb.TASK_STATE_DONE, device_id="pi-1", episodes=50, return_mean=190.25
)


def text_of(how: Format, *tasks: pb.TaskInfo) -> str:
    out = io.StringIO()
    write_listing(task_list(tasks), how, out)
    return out.getvalue()


def test_the_name_comes_first_the_age_last_and_between_them_who_works_how_fast() -> None:
    header, row = text_of(Format.TABLE, RUNNING).splitlines()
    assert header.split() == ["NAME", "ID", "STATE", "DEVICE", "STEPS/S", "ATTEMPTS", "AGE"]
    assert row.split() == ["pole", "7", "running", "pi-1", "812", "2", "1m5s"]


def test_the_wide_table_says_why_it_was_handed_out_again_and_what_was_reached() -> None:
    wide = text_of(Format.WIDE, RUNNING, DONE)
    assert "pi-2 was lost" in wide
    assert "190.2" in wide


def test_a_program_gets_every_value() -> None:
    envelope = json.loads(text_of(Format.JSON, RUNNING))
    assert envelope["schema"] == "shoal.v1.TaskList"
    (item,) = envelope["items"]
    assert item["env_kwargs"] == {"length": 0.5}
    assert (item["seed"], item["return_mean"]) == (3, None)


def test_arguments_that_are_no_json_are_not_a_crash() -> None:
    assert task_item(pb.TaskInfo(task=pb.Task(env_kwargs=b"{")))["env_kwargs"] is None


def test_without_tasks_it_says_how_to_have_some() -> None:
    assert "[[tasks]]" in text_of(Format.TABLE)
