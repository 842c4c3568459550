"""The journal's index: a SQLite file with a row for each chunk, and where its body lies."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloud_learner.journal import schema
from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport
from cloud_learner.journal.records import JournalTotals
from cloud_learner.journal.retention import ROW_BYTES
from shoal.errors import JournalError
from shoal.ranges import Ranges

_AT_START: Final = ("open", "read")
"""It is read only when the learner starts, and then nothing tries again."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an index held when it was opened.

    Attributes:
        decided: What was decided about each run.
        totals: Sums over every chunk ever accepted.
        held_bytes: What the chunks that are there count for in retention.
        last_position: The highest ever given out; 0 for none.
        rows_in: How many rows name each segment.
        segments: Those that it ever named and has not forgotten.
    """

    decided: dict[RunKey, Decided]
    totals: JournalTotals
    held_bytes: int
    last_position: int
    rows_in: Counter[int]
    segments: set[int]


class Index:
    """One connection, usable from any thread, one transaction at a time.

    with index.transaction("append to") as connection:
        connection.executemany(...)
        connection.execute("COMMIT")       # without it nothing happened
    """

    def __init__(self, path: Path, *, max_file_bytes: int) -> None:
        """Opens the file, or makes a new one.

        Args:
            path: Of the file.
            max_file_bytes: It does not grow beyond this; 0: as far as the disk goes.

        Raises:
            JournalError: It cannot be opened or written, or is not a journal.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
        except sqlite3.Error as error:
            raise self.failure("open", error) from error
        try:
            schema.prepare(self._connection, str(path))
            (self._page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
            if max_file_bytes:
                pages = max_file_bytes // self._page_bytes
                self._connection.execute(f"PRAGMA max_page_count = {pages:d}")
        except sqlite3.Error as error:
            self._connection.close()
            raise self.failure("read", error) from error
        except JournalError:
            self._connection.close()
            raise

    def close(self) -> None:
        """Waits for the transaction that runs, and closes the file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        """Runs a transaction, which the block has to commit.

        Args:
            verb: What the block does to the journal; "read" for a transaction that only reads.

        Raises:
            JournalError: The disk is full or broken; nothing was changed.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE" if verb != "read" else "BEGIN")
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise self.failure(verb, error) from error
            finally:
                with contextlib.suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")

    def load(self) -> Loaded:
        """Reads what is there.

        Raises:
            JournalError: It cannot be read, or is damaged.
        """
        with self.transaction("read") as connection:
            held, rows = connection.execute(schema.HELD).fetchone()
            last = connection.execute(schema.LAST_POSITION).fetchone()
            return Loaded(
                decided=_decided(connection),
                totals=JournalTotals(*connection.execute(schema.TOTALS).fetchone()),
                held_bytes=int(held) + int(rows) * ROW_BYTES,
                last_position=int(last[0]) if last is not None else 0,
                rows_in=Counter(dict(connection.execute(schema.ROWS_IN_SEGMENTS).fetchall())),
                segments={number for (number,) in connection.execute(schema.SEGMENTS)},
            )

    def size_bytes(self, connection: sqlite3.Connection) -> int:
        """How large the file is, within a transaction."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        return int(pages) * int(self._page_bytes)

    def reports(self) -> dict[RunKey, RunReport]:
        """What devices said of their runs when it was last saved.

        Raises:
            JournalError: It cannot be read.
        """
        with self.transaction("read") as connection:
            rows = connection.execute(schema.REPORTS).fetchall()
        return {
            RunKey(device, run): RunReport(produced, *(schema.unpack(blob) for blob in blobs))
            for device, run, produced, *blobs in rows
        }

    def save_reports(self, reports: Mapping[RunKey, RunReport]) -> None:
        """Keeps what devices said of these runs.

        Raises:
            JournalError: The disk is full or broken; nothing was changed.
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
        with self.transaction("write to") as connection:
            connection.executemany(schema.PUT_REPORT, rows)
            connection.execute("COMMIT")

    def failure(self, verb: str, error: sqlite3.Error | OSError) -> JournalError:
        """What went wrong, and what to do."""
        if verb in _AT_START:
            remedy = (
                "check its disk and permissions, or restore it from a backup. If the file is "
                f"damaged, move {self._path} and all beside it whose names begin like it (-wal, "
                "-shm, -segments) aside and resume: chunks in it that no checkpoint covers are "
                "lost, a chunk that a device sends again may be trained again, and the audit of "
                "earlier chunks cannot be balanced"
            )
        else:
            remedy = "free disk space or check the file, the learner tries again"
        return JournalError(f"cannot {verb} the journal {self._path}: {error}; {remedy}")


def _decided(connection: sqlite3.Connection) -> dict[RunKey, Decided]:
    decided = {
        RunKey(device, run): Decided(*(schema.unpack(blob) for blob in blobs))
        for device, run, *blobs in connection.execute(schema.SETTLED)
    }
    spans: dict[tuple[RunKey, Disposition], list[int]] = defaultdict(list)
    for device, run, seq, code in connection.execute(schema.KEYS):
        spans[RunKey(device, run), schema.DISPOSITIONS[code]].append(seq)
    for (key, disposition), seqs in spans.items():
        before = decided.get(key, Decided())
        decided[key] = before.with_chunks(Ranges.of(seqs), disposition)
    return decided
