"""The journal: the learner's durable record of every chunk it decided on, each exactly once."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cloud_learner.config import JournalConfig
from cloud_learner.journal import schema
from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport
from cloud_learner.journal.records import Entry, JournalTotals, Record
from cloud_learner.training.cursor import Cursor
from shoal.errors import JournalError
from shoal.ranges import Ranges
from shoal.trajectory import ChunkKey

_PAGE_ROWS = 256
_ROW_BYTES = 128  # what a row without a body counts for in retention
_NEWEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Page:
    """How many chunks left with a page of the oldest, and the last position that it looked at."""

    deleted: int
    last: int


class Journal:
    """Decides once and for ever which chunks count. One transaction commits many (group commit).

    Writes come from any thread, one at a time; reads of decisions never wait for a write.

    >>> with Journal(state_dir / "journal.db", JournalConfig()) as journal:
    ...     positions = journal.append_many(entries)   # None where the key was there already
    ...     journal.decided(RunKey("pi-1", run_id)).settled
    """

    def __init__(self, path: Path, config: JournalConfig) -> None:
        """Opens the journal, or makes a new one.

        Raises:
            JournalError: the file cannot be opened or written, or is not a journal.
        """
        self._path = path
        self._retain_bytes = config.retain_bytes
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
        except sqlite3.Error as error:
            raise self._failure("open", error) from error
        try:
            schema.prepare(self._connection, str(path))
            if config.max_file_bytes:
                (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
                pages = config.max_file_bytes // page_bytes
                self._connection.execute(f"PRAGMA max_page_count = {pages:d}")
            self._decided = self._load_decided()
            self._totals = JournalTotals(*self._connection.execute(schema.TOTALS).fetchone())
            held, rows = self._connection.execute(schema.HELD).fetchone()
            self._held_bytes = int(held) + int(rows) * _ROW_BYTES
        except sqlite3.Error as error:
            self._connection.close()
            raise self._failure("read", error) from error
        except JournalError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @property
    def totals(self) -> JournalTotals:
        """Sums over every chunk ever accepted."""
        return self._totals

    @property
    def last_position(self) -> int:
        """The highest position ever given out; 0 for none.

        Raises:
            JournalError: the journal cannot be read.
        """
        with self._transaction("read") as connection:
            row = connection.execute(schema.LAST_POSITION).fetchone()
        return int(row[0]) if row is not None else 0

    def decided(self, run: RunKey) -> Decided:
        """What was decided about a run; durable when this returns it."""
        return self._decided.get(run, _UNDECIDED)

    def runs(self) -> Mapping[RunKey, Decided]:
        """Every run with a decision."""
        return dict(self._decided)

    def append_many(self, entries: Sequence[Entry]) -> list[int | None]:
        """Makes decisions durable in one transaction.

        Returns:
            For each entry its position, or None where its key was decided before.

        Raises:
            JournalError: the disk is full or broken; nothing was written.
        """
        with self._transaction("append to") as connection:
            positions: list[int | None] = []
            fresh: dict[RunKey, dict[int, Disposition]] = defaultdict(dict)
            added = JournalTotals()
            held = 0
            for entry in entries:
                run = RunKey(entry.key.device_id, entry.key.run_id)
                if entry.key.seq in fresh[run] or self.decided(run).contains(entry.key.seq):
                    positions.append(None)
                    continue
                cursor = connection.execute(schema.INSERT_CHUNK, _row(entry))
                positions.append(cursor.lastrowid)
                fresh[run][entry.key.seq] = entry.disposition
                added = JournalTotals(
                    added.transitions + entry.transitions,
                    added.episodes + entry.episodes,
                    added.body_bytes + len(entry.body),
                )
                held += len(entry.body) + _ROW_BYTES
            decided = {run: self._after(run, its) for run, its in fresh.items() if its}
            connection.execute("COMMIT")
            self._decided.update(decided)
            self._held_bytes += held
            self._totals = JournalTotals(
                self._totals.transitions + added.transitions,
                self._totals.episodes + added.episodes,
                self._totals.body_bytes + added.body_bytes,
            )
        return positions

    def redispose(self, positions: Sequence[int], disposition: Disposition) -> None:
        """Changes what was decided about chunks that are there: each still counts once.

        Raises:
            JournalError: the disk is full or broken; nothing was changed.
        """
        with self._transaction("write to") as connection:
            decided: dict[RunKey, Decided] = {}
            for position in positions:
                row = connection.execute(schema.KEY_AT, (position,)).fetchone()
                if row is None or schema.DISPOSITIONS[row[3]] is disposition:
                    continue
                connection.execute(schema.REDISPOSE, (schema.CODES[disposition], position))
                run = RunKey(row[0], row[1])
                before = decided.get(run) or self.decided(run)
                decided[run] = before.with_chunks(Ranges.of([row[2]]), disposition)
            connection.execute("COMMIT")
            self._decided.update(decided)

    def since(self, cursor: Cursor) -> Iterator[Record]:
        """The chunks that ``cursor`` does not cover and whose bodies are there, oldest first.

        Raises:
            JournalError: the journal cannot be read.
        """
        waiting = cursor.waiting.spans
        position = min(cursor.position, waiting[0][0] - 1) if waiting else cursor.position
        while rows := self._page(schema.AFTER, position):
            yield from (row for row in rows if not cursor.covers(row.position))
            position = rows[-1].position

    def newest_first(self) -> Iterator[Record]:
        """The chunks whose bodies are there, newest first.

        Raises:
            JournalError: the journal cannot be read.
        """
        position = _NEWEST
        while rows := self._page(schema.BEFORE, position):
            yield from rows
            position = rows[-1].position

    @property
    def excess_bytes(self) -> int:
        """What is held beyond ``retain_bytes``."""
        return max(0, self._held_bytes - self._retain_bytes)

    def prune(self, cursor: Cursor, held: AbstractSet[int] = frozenset()) -> int:
        """Deletes the oldest chunks beyond ``retain_bytes``; their keys and sums stay.

        Args:
            cursor: of a checkpoint on disk: what it does not cover is kept, whatever its size.
            held: positions of chunks that this checkpoint needs again: they are kept, too.

        Returns:
            How many were deleted.

        Raises:
            JournalError: the disk is full or broken; nothing was changed.
        """
        deleted, after = 0, 0
        while self.excess_bytes and after < cursor.position:
            page = self._prune_page(cursor, held, after)
            deleted += page.deleted
            after = page.last
        return deleted

    def reports(self) -> dict[RunKey, RunReport]:
        """What devices said of their runs when it was last saved.

        Raises:
            JournalError: the journal cannot be read.
        """
        with self._transaction("read") as connection:
            rows = connection.execute(schema.REPORTS).fetchall()
        return {
            RunKey(device, run): RunReport(produced, *(schema.unpack(blob) for blob in blobs))
            for device, run, produced, *blobs in rows
        }

    def save_reports(self, reports: Mapping[RunKey, RunReport]) -> None:
        """Keeps what devices said of these runs; an older report is as true as a newer one.

        Raises:
            JournalError: the disk is full or broken; nothing was changed.
        """
        rows = [
            (
                run.device_id,
                run.run_id,
                report.produced,
                schema.pack(report.spooled),
                schema.pack(report.dropped),
                schema.pack(report.expired),
            )
            for run, report in reports.items()
        ]
        with self._transaction("write to") as connection:
            connection.executemany(schema.PUT_REPORT, rows)
            connection.execute("COMMIT")

    def _after(self, run: RunKey, fresh: Mapping[int, Disposition]) -> Decided:
        """What is decided about a run once these chunks of it are."""
        after = self.decided(run)
        for disposition in set(fresh.values()):
            seqs = Ranges.of(seq for seq, its in fresh.items() if its is disposition)
            after = after.with_chunks(seqs, disposition)
        return after

    def _prune_page(self, cursor: Cursor, kept: AbstractSet[int], after: int) -> _Page:
        with self._transaction("prune") as connection:
            rows = connection.execute(
                schema.OLDEST, (after, cursor.position, _PAGE_ROWS)
            ).fetchall()
            freed = 0
            gone: dict[RunKey, list[tuple[int, ...]]] = defaultdict(list)
            for position, device, run, *rest, held in rows:
                if self._held_bytes - freed <= self._retain_bytes:
                    break
                if cursor.covers(position) and position not in kept:
                    connection.execute(schema.DELETE_CHUNK, (position,))
                    gone[RunKey(device, run)].append(tuple(rest))
                    freed += held + _ROW_BYTES
            for key, chunks in gone.items():
                _fold(connection, key, chunks)
            connection.execute("COMMIT")
            self._held_bytes -= freed
        last = rows[-1][0] if len(rows) == _PAGE_ROWS else cursor.position
        return _Page(sum(len(chunks) for chunks in gone.values()), last)

    def _page(self, statement: str, position: int) -> list[Record]:
        with self._transaction("read") as connection:
            rows = connection.execute(statement, (position, _PAGE_ROWS)).fetchall()
        return [
            Record(
                position=row[0],
                key=ChunkKey(row[1], row[2], row[3]),
                disposition=schema.DISPOSITIONS[row[4]],
                policy_version=row[5],
                body=row[6],
            )
            for row in rows
        ]

    def _load_decided(self) -> dict[RunKey, Decided]:
        decided = {
            RunKey(device, run): Decided(*(schema.unpack(blob) for blob in blobs))
            for device, run, *blobs in self._connection.execute(schema.SETTLED)
        }
        spans: dict[tuple[RunKey, Disposition], list[int]] = defaultdict(list)
        for device, run, seq, code in self._connection.execute(schema.KEYS):
            spans[RunKey(device, run), schema.DISPOSITIONS[code]].append(seq)
        for (key, disposition), seqs in spans.items():
            before = decided.get(key, _UNDECIDED)
            decided[key] = before.with_chunks(Ranges.of(seqs), disposition)
        return decided

    @contextlib.contextmanager
    def _transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE" if verb != "read" else "BEGIN")
                yield self._connection
            except sqlite3.Error as error:
                raise self._failure(verb, error) from error
            finally:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")

    def _failure(self, verb: str, error: sqlite3.Error) -> JournalError:
        if verb in _AT_START:
            remedy = (
                "check its disk and permissions, or restore it from a backup. If the file is "
                f"damaged, move {self._path} and the files beside it ending in -wal and -shm "
                "aside and resume: chunks in it that no checkpoint covers are lost, a chunk that "
                "a device sends again may be trained again, and the audit of earlier chunks "
                "cannot be balanced"
            )
        else:
            remedy = "free disk space or check the file, the learner tries again"
        return JournalError(f"cannot {verb} the journal {self._path}: {error}; {remedy}")


_UNDECIDED = Decided()
_AT_START = ("open", "read")
"""It is read only when the learner starts, and then nothing tries again."""


def _row(entry: Entry) -> tuple[object, ...]:
    return (
        entry.key.device_id,
        entry.key.run_id,
        entry.key.seq,
        schema.CODES[entry.disposition],
        entry.policy_version,
        entry.transitions,
        entry.episodes,
        len(entry.body),
        entry.reason,
        entry.body or None,
    )


def _fold(connection: sqlite3.Connection, run: RunKey, chunks: Sequence[tuple[int, ...]]) -> None:
    """Adds deleted rows (seq, disposition, transitions, episodes, body_bytes) to their run's."""
    key = (run.device_id, run.run_id)
    row = connection.execute(schema.SETTLED_OF, key).fetchone()
    decided = Decided(*(schema.unpack(blob) for blob in row[:3])) if row else _UNDECIDED
    sums = row[3:] if row else (0, 0, 0)
    for code, disposition in schema.DISPOSITIONS.items():
        seqs = Ranges.of(chunk[0] for chunk in chunks if chunk[1] == code)
        decided = decided.with_chunks(seqs, disposition)
    totals = (sums[at] + sum(chunk[at + 2] for chunk in chunks) for at in range(3))
    sets = (schema.pack(each) for each in (decided.trained, decided.expired, decided.rejected))
    connection.execute(schema.PUT_SETTLED, (*key, *sets, *totals))
