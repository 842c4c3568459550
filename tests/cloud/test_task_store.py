from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cloud_learner.dispatch.config import TaskConfig, specs_of
from cloud_learner.dispatch.store import TaskStore
from cloud_learner.dispatch.tasks import Holder, Limits, Result, State, TaskQueue
from shoal.errors import ConfigError, TaskStoreError

ONE = Holder("pi-1", bytes(range(16)))
SPECS = specs_of([TaskConfig("a", episodes=5, first_seed=0, seeds=2), TaskConfig("b", steps=9)])


def test_what_became_of_tasks_outlives_the_learner(tmp_path: Path) -> None:
    with TaskStore(tmp_path / "tasks.db") as store:
        queue = TaskQueue(store.load(SPECS, 0.0), Limits())
        for _ in range(2):
            assert queue.next(ONE, 1.0) is not None
        assert queue.finish(ONE, 1, Result(5, 90, 18.0), 3.0)
        queue.next(ONE, 3.0)
        store.save(queue.changed())
    with TaskStore(tmp_path / "tasks.db") as store:
        first, second, third = store.load(SPECS, 50.0)
    assert (first.state, first.result, first.seconds) == (State.DONE, Result(5, 90, 18.0), 2.0)
    assert (second.state, second.holder, second.attempts) == (State.RUNNING, ONE, 1)
    assert second.since_s == 50.0
    assert (third.state, third.spec.max_steps) == (State.WAITING, 9)


def test_ids_stay_when_tasks_are_added_or_taken_out_of_the_configuration(tmp_path: Path) -> None:
    with TaskStore(tmp_path / "tasks.db") as store:
        store.load(SPECS, 0.0)
        more = specs_of([TaskConfig("c", steps=1), TaskConfig("b", steps=9)])
        assert {task.task_id: task.spec.name for task in store.load(more, 0.0)} == {3: "b", 4: "c"}
        assert [task.task_id for task in store.load(SPECS, 0.0)] == [1, 2, 3]


def test_another_threshold_is_not_another_task() -> None:
    one, other = (
        specs_of([TaskConfig("a", episodes=5, pass_return=value)])[0] for value in (1.0, 2.0)
    )
    assert one.key == other.key
    assert one.key != specs_of([TaskConfig("a", episodes=6)])[0].key


def test_a_disk_that_refuses_is_told_and_a_newer_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with TaskStore(path) as store:
        (task,) = store.load(SPECS[:1], 0.0)
        store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(TaskStoreError, match=r"tasks\.db"):
            store.save([task])
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(TaskStoreError, match="schema 99"):
        TaskStore(path)


def test_a_table_of_tasks_becomes_single_ones() -> None:
    specs = specs_of(
        [
            TaskConfig(
                "pole",
                env_id="CartPole-v1",
                env_kwargs={"b": 1, "a": [2]},
                first_seed=7,
                seeds=2,
                repeat=2,
                episodes=3,
                stage=1,
            )
        ]
    )
    assert [(spec.seed, spec.repetition) for spec in specs] == [(7, 0), (8, 0), (7, 1), (8, 1)]
    assert specs[0].env_kwargs == '{"a": [2], "b": 1}'
    assert len({spec.key for spec in specs}) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": ""}, "name"),
        ({"name": "a"}, "needs an end"),
        ({"name": "a", "steps": 1, "seeds": 2}, "first_seed"),
        ({"name": "a", "steps": 1, "first_seed": -1}, "first_seed"),
        ({"name": "a", "steps": 1, "seeds": 0}, "seeds"),
        ({"name": "a", "steps": 1, "pass_return": 3.0}, "episodes"),
        ({"name": "a", "episodes": 1, "pass_return": float("nan")}, "pass_return"),
        ({"name": "a", "steps": 1, "env_kwargs": {"x": float("inf")}}, "env_kwargs"),
        ({"name": "a", "steps": 1, "env_kwargs": {"x": "y" * 20_000}}, "16384"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskConfig(**values)  # type: ignore[arg-type]


def test_names_are_unique_and_tasks_not_too_many() -> None:
    with pytest.raises(ConfigError, match=r"two .* 'a'"):
        specs_of([TaskConfig("a", steps=1), TaskConfig("a", steps=2)])
    many = [TaskConfig(f"t{n}", steps=1, repeat=60_000) for n in range(2)]
    with pytest.raises(ConfigError, match="120000 tasks"):
        specs_of(many)
