"""The tasks on disk: what was handed out, finished and given up outlives the learner."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from cloud_learner.dispatch.tasks import Holder, Result, State, Task, TaskSpec
from cloud_learner.sqlite_store import SqliteStore
from shoal.errors import TaskStoreError

SCHEMA_VERSION: Final = 1
_TABLE: Final = """
CREATE TABLE tasks (
    task_id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
    device TEXT NOT NULL, run BLOB NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL,
    losses INTEGER NOT NULL, episodes INTEGER NOT NULL, steps INTEGER NOT NULL,
    return_mean REAL NOT NULL, seconds REAL NOT NULL, reason TEXT NOT NULL);
"""
_SELECT: Final = """
SELECT key, task_id, state, device, run, attempts, failures, losses, episodes, steps, return_mean,
       seconds, reason FROM tasks
"""
_INSERT: Final = """
INSERT OR IGNORE INTO tasks (key, state, device, run, attempts, failures, losses, episodes, steps,
                             return_mean, seconds, reason)
VALUES (?, 'waiting', '', x'', 0, 0, 0, 0, 0, 0.0, 0.0, '')
"""
_UPDATE: Final = """
UPDATE tasks SET state = ?, device = ?, run = ?, attempts = ?, failures = ?, losses = ?,
                 episodes = ?, steps = ?, return_mean = ?, seconds = ?, reason = ?
WHERE task_id = ?
"""


class TaskStore(SqliteStore):
    """A SQLite file with one row a task.

    with TaskStore(state.tasks) as store:
        queue = TaskQueue(store.load(specs, now_s), limits)
        store.save(queue.changed())
    """

    what, tables, schema_version, refusal = "tasks", _TABLE, SCHEMA_VERSION, TaskStoreError

    def load(self, specs: Sequence[TaskSpec], now_s: float) -> list[Task]:
        """The tasks of a configuration with what became of them; new ones are added.

        What the configuration no longer has is left on disk and not handed out.

        Args:
            specs: All that are configured, in order.
            now_s: Monotonic; leases count from here on.

        Raises:
            TaskStoreError: The disk refuses.
        """
        by_key = {spec.key: spec for spec in specs}
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(_INSERT, ((key,) for key in by_key))
                self._db.execute("COMMIT")
                rows = self._db.execute(_SELECT).fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from error
        return [
            Task(
                task_id=row[1],
                spec=by_key[row[0]],
                state=State(row[2]),
                holder=Holder(row[3], row[4]) if row[3] else None,
                attempts=row[5],
                failures=row[6],
                losses=row[7],
                result=Result(row[8], row[9], row[10]),
                seconds=row[11],
                reason=row[12],
                since_s=now_s,
            )
            for row in rows
            if row[0] in by_key
        ]

    def save(self, tasks: Sequence[Task]) -> None:
        """Makes the state of tasks durable.

        Raises:
            TaskStoreError: The disk refuses; nothing was changed.
        """
        if not tasks:
            return
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(_UPDATE, map(_row, tasks))
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._failure(error) from error


def _row(task: Task) -> tuple[object, ...]:
    holder = task.holder or Holder("", b"")
    return (
        task.state.value,
        holder.device_id,
        holder.run_id,
        task.attempts,
        task.failures,
        task.losses,
        task.result.episodes,
        task.result.steps,
        task.result.return_mean,
        task.seconds,
        task.reason,
        task.task_id,
    )
