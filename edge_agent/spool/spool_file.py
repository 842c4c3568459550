"""The spool's file: SQLite transactions, one call each, no threads of its own."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edge_agent.spool.run_ledger import NOTHING, RunLedger
from shoal.errors import SpoolError
from shoal.ranges import Ranges

KEEP_RUNS: Final = 64
"""Runs whose counts are kept after their last chunk has left."""
_BUSY_TIMEOUT_S: Final = 5.0
_SCHEMA_VERSION: Final = 2
_PAGE_BYTES: Final = 16_384
"""Of a new file: a chunk of 80 KiB is read and deleted as five pages rather than twenty."""
_LOG_BYTES: Final = 4 * 1024 * 1024
"""Of the write-ahead log, beyond which it is written back."""
_READER_PAGES: Final = 8
"""That the reader keeps: bodies are read once, and a larger cache is memory that is cold."""
_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id BLOB NOT NULL UNIQUE,
        produced INTEGER NOT NULL, dropped TEXT NOT NULL,
        expired TEXT NOT NULL DEFAULT '[]')""",
    """CREATE TABLE IF NOT EXISTS chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id BLOB NOT NULL, seq INTEGER NOT NULL,
        policy_version INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL,
        UNIQUE (run_id, seq))""",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
_FROM_VERSION_1: Final = (
    "ALTER TABLE runs ADD COLUMN expired TEXT NOT NULL DEFAULT '[]'",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_WRONG_PATH: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
)


@dataclass(frozen=True, slots=True)
class SpooledChunk:
    """A chunk as it lies on the disk.

    Attributes:
        run_id: the run that made it, 16 bytes; not always the present one.
        seq: its number within the run.
        policy_version: the version that acted.
        body: the encoded chunk.
        oldest_seq: the lowest number of that run which the device still holds.
    """

    run_id: bytes
    seq: int
    policy_version: int
    body: bytes
    oldest_seq: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """What one transaction did.

    Attributes:
        stored: sequence numbers of the present run that are on the disk now.
        dropped: by run, the numbers given up to make room.
        expired: by run, the numbers that were too old.
        size_bytes: bytes of bodies on the disk now.
        forgotten: runs whose counts are no longer kept.
    """

    stored: Ranges
    dropped: Mapping[bytes, Ranges]
    expired: Mapping[bytes, Ranges]
    size_bytes: int
    forgotten: Sequence[bytes]


def is_damaged(error: Exception) -> bool:
    """Whether the file itself is broken, rather than the disk full or away."""
    return _code(error) in _DAMAGED


def is_full(error: Exception) -> bool:
    """Whether there is no room."""
    return _code(error) == sqlite3.SQLITE_FULL


def may_recover(error: Exception) -> bool:
    """Whether waiting can help: the disk is full or failing, rather than the path wrong."""
    return _code(error) not in _WRONG_PATH


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """The version of a file's tables; 0 when it has none yet.

    Raises:
        SpoolError: a newer version of the agent wrote it.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > _SCHEMA_VERSION:
        raise SpoolError(
            f"spool {path} is of version {version}, this agent knows "
            f"{_SCHEMA_VERSION}: update the agent, or give it another state_dir"
        )
    return version


class SpoolFile:
    """One SQLite file in WAL mode, written by one thread and read by any.

    file = SpoolFile(path)
    runs = file.open(RunLedger(run_id))
    commit = file.commit([chunk], {}, runs, max_bytes=2**28)
    file.close()
    """

    def __init__(self, path: Path) -> None:
        """Describes the file; `open` touches it."""
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._read_lock = threading.Lock()
        self._saved: dict[bytes, RunLedger] = {}
        self._oldest_version = 0
        self.size_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether `open` succeeded since the last `close`."""
        return self._db is not None

    def open(self) -> list[RunLedger]:
        """Opens the file, making it if need be.

        Returns:
            The runs it knows, oldest first.

        Raises:
            SpoolError: a newer version of the agent wrote it.
            sqlite3.Error: the disk is full, away or read-only, or the file is damaged.
        """
        db = self._connect()
        try:
            version = check_version(db, self._path)
            db.execute(f"PRAGMA page_size = {_PAGE_BYTES:d}")  # an old file keeps its own
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            # Some systems' SQLite overwrites what is deleted: each chunk would be written twice.
            db.execute("PRAGMA secure_delete = FAST")
            (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
            db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_bytes:d}")
            for statement in {0: _SCHEMA, 1: _FROM_VERSION_1}.get(version, ()):
                db.execute(statement)
            runs = [
                RunLedger(row[0], row[1], NOTHING, _spans(row[2]), _spans(row[3]))
                for row in db.execute(
                    "SELECT run_id, produced, dropped, expired FROM runs ORDER BY id"
                )
            ]
            spooled: dict[bytes, list[int]] = {run.run_id: [] for run in runs}
            size = 0
            for run_id, seq, bytes_ in db.execute("SELECT run_id, seq, size FROM chunks"):
                spooled.setdefault(run_id, []).append(seq)
                size += bytes_
        except BaseException:
            db.close()
            raise
        self._db, self.size_bytes, self._oldest_version = db, size, 0
        self._saved = {run.run_id: run for run in runs}
        with self._read_lock:  # now, while the disk is well: a reader that is open stays open
            if self._reader is None:
                self._reader = self._connect_reader()
                self._reader.execute("SELECT count(*) FROM runs").fetchone()
        return [replace(run, spooled=Ranges.of(spooled[run.run_id])) for run in runs]

    def commit(
        self,
        chunks: Sequence[SpooledChunk],
        acked: Mapping[bytes, Ranges],
        runs: Sequence[RunLedger],
        *,
        max_bytes: int,
        oldest_version: int = 0,
    ) -> Commit:
        """One transaction: what was acknowledged or expired leaves, the oldest make room for new.

        Args:
            chunks: new ones of the present run, in order.
            acked: by run, what to delete.
            runs: the counts so far, the present run last; those that changed are written.
            max_bytes: bytes of bodies to hold at most.
            oldest_version: chunks of versions before it have expired.

        Raises:
            sqlite3.Error: the disk refused; nothing changed.
        """
        db = self._db
        if db is None:
            raise sqlite3.OperationalError("the file is not open")
        present = runs[-1].run_id
        db.execute("BEGIN IMMEDIATE")
        try:
            size = self.size_bytes - _delete_all(db, acked)
            aged: dict[bytes, Ranges] = {}
            if oldest_version > self._oldest_version:  # else all that lies here was looked at
                aged = _aged(db, oldest_version)
                size -= _delete_all(db, aged)
            fresh = [chunk for chunk in chunks if chunk.policy_version >= oldest_version]
            if len(fresh) < len(chunks):
                stale = Ranges.of(c.seq for c in chunks if c.policy_version < oldest_version)
                aged[present] = aged.get(present, NOTHING).union(stale)
            kept = _newest(fresh, max_bytes)
            size += sum(len(chunk.body) for chunk in kept)
            lost = [chunk.seq for chunk in fresh[: len(fresh) - len(kept)]]
            dropped = {present: Ranges.of(lost)} if lost else {}
            while size > max_bytes:
                row = db.execute("SELECT run_id, seq FROM chunks ORDER BY id LIMIT 1").fetchone()
                size -= _delete(db, row[0], row[1], row[1] + 1)
                dropped[row[0]] = dropped.get(row[0], NOTHING).add(row[1])
            db.executemany(
                "INSERT INTO chunks (run_id, seq, policy_version, size, body)"
                " VALUES (?, ?, ?, ?, ?)",
                ((c.run_id, c.seq, c.policy_version, len(c.body), c.body) for c in kept),
            )
            produced = {present: chunks[-1].seq + 1} if chunks else {}
            saved = [
                after
                for run in runs
                if self._save_if_changed(
                    after := run.after(
                        produced=produced.get(run.run_id, 0),
                        dropped=dropped.get(run.run_id, NOTHING),
                        expired=aged.get(run.run_id, NOTHING),
                    )
                )
            ]
            old = [run.run_id for run in runs[:-KEEP_RUNS] if not run.spooled]
            db.executemany("DELETE FROM runs WHERE run_id = ?", ((run_id,) for run_id in old))
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        self.size_bytes, self._oldest_version = size, oldest_version
        self._saved.update((run.run_id, run) for run in saved)
        for run_id in old:
            self._saved.pop(run_id, None)
        return Commit(Ranges.of(chunk.seq for chunk in kept), dropped, aged, size, old)

    def _save_if_changed(self, run: RunLedger) -> bool:
        """Writes a run's counts; whether they were other ones before."""
        before = self._saved.get(run.run_id)
        changed = before is None or not before.counts_like(run)
        if changed and self._db is not None:
            _save(self._db, run)
        return changed

    def read(self, run_id: bytes, seq: int) -> SpooledChunk | None:
        """One chunk, or None when it is not there; `oldest_seq` is left 0.

        Raises:
            sqlite3.Error: the disk refused; the next call opens the file anew.
        """
        with self._read_lock:
            try:
                if self._reader is None:
                    self._reader = self._connect_reader()
                row = self._reader.execute(
                    "SELECT policy_version, body FROM chunks WHERE run_id = ? AND seq = ?",
                    (run_id, seq),
                ).fetchone()
            except sqlite3.Error:
                self._close_reader()
                raise
        return SpooledChunk(run_id, seq, row[0], row[1]) if row is not None else None

    def move_aside(self) -> Path:
        """Closes a damaged file and gives it another name, so that a new one can be made.

        Returns:
            The new name.
        """
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        with contextlib.suppress(OSError):
            self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return aside

    def close(self) -> None:
        """Closes both connections."""
        with self._read_lock:
            self._close_reader()
        self.close_writer()

    def close_writer(self) -> None:
        """Closes the writer's connection, so that it is opened anew; chunks can still be read."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(sqlite3.Error):
                self._reader.close()
        self._reader = None

    def _connect_reader(self) -> sqlite3.Connection:
        reader = self._connect()
        reader.execute(f"PRAGMA cache_size = {_READER_PAGES:d}")
        return reader

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )


def _code(error: Exception) -> int:
    """The primary result code; 0 when the error did not come from SQLite itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _delete(db: sqlite3.Connection, run_id: bytes, start: int, stop: int) -> int:
    """Deletes `[start, stop)` of a run; returns the bytes that leave."""
    span = (run_id, start, stop)
    size = db.execute(
        "SELECT coalesce(sum(size), 0) FROM chunks WHERE run_id = ? AND seq >= ? AND seq < ?", span
    ).fetchone()[0]
    db.execute("DELETE FROM chunks WHERE run_id = ? AND seq >= ? AND seq < ?", span)
    return int(size)


def _delete_all(db: sqlite3.Connection, chunks: Mapping[bytes, Ranges]) -> int:
    """Deletes chunks by run; returns the bytes that leave."""
    return sum(_delete(db, run, *span) for run, ranges in chunks.items() for span in ranges.spans)


def _aged(db: sqlite3.Connection, oldest_version: int) -> dict[bytes, Ranges]:
    """By run, the chunks of versions before that one."""
    found: dict[bytes, list[int]] = {}
    for run_id, seq in db.execute(
        "SELECT run_id, seq FROM chunks WHERE policy_version < ?", (oldest_version,)
    ):
        found.setdefault(run_id, []).append(seq)
    return {run_id: Ranges.of(seqs) for run_id, seqs in found.items()}


def _save(db: sqlite3.Connection, run: RunLedger) -> None:
    db.execute(
        "INSERT INTO runs (run_id, produced, dropped, expired) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (run_id) DO UPDATE SET produced = excluded.produced,"
        " dropped = excluded.dropped, expired = excluded.expired",
        (run.run_id, run.produced, json.dumps(run.dropped.spans), json.dumps(run.expired.spans)),
    )


def _spans(text: str) -> Ranges:
    try:
        return Ranges.from_spans((int(start), int(stop)) for start, stop in json.loads(text))
    except (TypeError, ValueError) as error:
        damage = sqlite3.DatabaseError(f"a ledger row cannot be read: {error}")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage from error


def _newest(chunks: Sequence[SpooledChunk], max_bytes: int) -> Sequence[SpooledChunk]:
    """The longest tail that fits."""
    size = 0
    for index in range(len(chunks) - 1, -1, -1):
        size += len(chunks[index].body)
        if size > max_bytes:
            return chunks[index + 1 :]
    return chunks
