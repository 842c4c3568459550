"""The rollouts on disk: what was decided outlives the learner, whenever it is killed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from cloud_learner.rollout.plan import Kind, Plan, Wave
from cloud_learner.rollout.rollout import (
    Member,
    Note,
    PolicyVersions,
    Progress,
    Rollout,
    State,
)
from cloud_learner.sqlite_store import SqliteStore
from shoal.errors import ConfigError, RolloutError

SCHEMA_VERSION: Final = 1
KEPT: Final = 200
"""Rollouts that are remembered; of more, the oldest that ended are forgotten."""
_TABLES: Final = """
CREATE TABLE rollouts (
    rollout_id INTEGER PRIMARY KEY AUTOINCREMENT, plan TEXT NOT NULL, state TEXT NOT NULL,
    reason TEXT NOT NULL, wave INTEGER NOT NULL, ran_s REAL NOT NULL, history TEXT NOT NULL,
    versions TEXT NOT NULL, created_unix_ms INTEGER NOT NULL);
CREATE TABLE members (
    rollout_id INTEGER NOT NULL, device TEXT NOT NULL, wave INTEGER NOT NULL,
    assigned_s REAL NOT NULL, progress TEXT NOT NULL, since_s REAL NOT NULL, reason TEXT NOT NULL,
    episodes INTEGER NOT NULL, run BLOB NOT NULL, deaths INTEGER NOT NULL,
    PRIMARY KEY (rollout_id, device)) WITHOUT ROWID;
"""
_UPSERT: Final = "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class RolloutStore(SqliteStore):
    """A SQLite file with a row for each rollout, and one for each device in it.

    with RolloutStore(state.rollouts) as store:
        rollout = store.create(Rollout(0, plan))
        store.save(rollout, rollout.after(action, now_s))
    """

    what, tables, schema_version, refusal = "rollouts", _TABLES, SCHEMA_VERSION, RolloutError

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            RolloutError: It cannot be opened, or a newer program wrote it.
        """
        super().__init__(path)
        self._pinned: dict[int, frozenset[int]] = {}

    def load(self) -> list[Rollout]:
        """Every rollout, the oldest first.

        Raises:
            RolloutError: The disk refuses, or the file holds what is none.
        """
        with self._lock:
            try:
                rows = self._db.execute("SELECT * FROM rollouts ORDER BY rollout_id").fetchall()
                members = self._db.execute("SELECT * FROM members").fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from error
        try:
            by_rollout: dict[int, dict[str, Member]] = {}
            for row in members:
                by_rollout.setdefault(row[0], {})[row[1]] = _member(row)
            found = [_rollout(row, by_rollout.get(row[0], {})) for row in rows]
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise RolloutError(
                f"rollouts {self._path}: damaged ({error}); restore it, or move it away: rollouts "
                "in progress are forgotten then"
            ) from error
        for rollout in found:
            self._pin(rollout)
        return found

    def pinned(self) -> frozenset[int]:
        """Policy versions that rollouts in progress are about: none of them may be deleted."""
        return frozenset().union(*self._pinned.copy().values())

    def create(self, rollout: Rollout) -> Rollout:
        """Gives a rollout its number and makes it durable.

        Raises:
            RolloutError: The disk refuses.
        """
        with self._lock, self._transaction():
            cursor = self._db.execute(
                "INSERT INTO rollouts (plan, state, reason, wave, ran_s, history, versions, "
                "created_unix_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (json.dumps(asdict(rollout.plan)), *_columns(rollout), rollout.created_unix_ms),
            )
            rollout_id = cursor.lastrowid or 0
            self._forget()
        created = replace(rollout, rollout_id=rollout_id)
        self._pin(created)
        return created

    def save(self, before: Rollout, after: Rollout) -> None:
        """Makes durable what changed.

        Raises:
            RolloutError: The disk refuses; nothing was changed.
        """
        changed = [
            member for name, member in after.members.items() if before.members.get(name) != member
        ]
        with self._lock, self._transaction():
            self._db.execute(
                "UPDATE rollouts SET state = ?, reason = ?, wave = ?, ran_s = ?, history = ?, "
                "versions = ? WHERE rollout_id = ?",
                (*_columns(after), after.rollout_id),
            )
            self._db.executemany(_UPSERT, (_row(after.rollout_id, each) for each in changed))
        self._pin(after)

    def _pin(self, rollout: Rollout) -> None:
        used = rollout.versions.in_use() if rollout.in_progress else frozenset()
        self._pinned[rollout.rollout_id] = used

    def _forget(self) -> None:
        ended = (str(State.PROMOTED), str(State.ABORTED))
        self._db.execute(
            "DELETE FROM rollouts WHERE state IN (?, ?) AND rollout_id NOT IN "
            "(SELECT rollout_id FROM rollouts ORDER BY rollout_id DESC LIMIT ?)",
            (*ended, KEPT),
        )
        self._db.execute(
            "DELETE FROM members WHERE rollout_id NOT IN (SELECT rollout_id FROM rollouts)"
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise self._failure(error) from error


def _columns(rollout: Rollout) -> tuple[object, ...]:
    return (
        str(rollout.state),
        rollout.reason,
        rollout.wave,
        rollout.ran_s,
        json.dumps([asdict(note) for note in rollout.history]),
        json.dumps(asdict(rollout.versions)),
    )


def _row(rollout_id: int, member: Member) -> tuple[object, ...]:
    return (
        rollout_id,
        member.device_id,
        member.wave,
        member.assigned_s,
        str(member.progress),
        member.since_s,
        member.reason,
        member.episodes,
        member.run_id,
        member.deaths,
    )


def _member(row: tuple[object, ...]) -> Member:
    _, device_id, wave, assigned_s, progress, since_s, reason, episodes, run_id, deaths = row
    return Member(
        device_id=str(device_id),
        wave=_number(wave),
        assigned_s=float(str(assigned_s)),
        progress=Progress(str(progress)),
        since_s=float(str(since_s)),
        reason=str(reason),
        episodes=_number(episodes),
        run_id=run_id if isinstance(run_id, bytes) else b"",
        deaths=_number(deaths),
    )


def _rollout(row: tuple[object, ...], members: Mapping[str, Member]) -> Rollout:
    rollout_id, plan, state, reason, wave, ran_s, history, versions, created = row
    return Rollout(
        rollout_id=_number(rollout_id),
        plan=_plan(json.loads(str(plan))),
        state=State(str(state)),
        reason=str(reason),
        wave=_number(wave),
        ran_s=float(str(ran_s)),
        members=members,
        history=tuple(Note(**each) for each in json.loads(str(history))),
        versions=PolicyVersions(**json.loads(str(versions))),
        created_unix_ms=_number(created),
    )


def _plan(fields: dict[str, object]) -> Plan:
    waves = fields.pop("waves")
    if not isinstance(waves, list):
        raise TypeError("its waves are no list")
    kind = Kind(str(fields.pop("kind")))
    return Plan(kind=kind, waves=tuple(Wave(**each) for each in waves), **fields)  # type: ignore[arg-type] # checked as it is made


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
