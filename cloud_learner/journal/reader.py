"""Reads a journal beside the learner that writes it: nothing is locked, made or changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cloud_learner.journal import schema
from cloud_learner.journal.audit import RunKey
from shoal.errors import JournalError, WireError
from shoal.trajectory import Chunk, decode_chunk

# Pages, so that no read holds the journal's write-ahead log for long.
_PAGE_ROWS = 64
_RUNS = """
SELECT device, run, count(*), min(seq) FROM chunks
WHERE body IS NOT NULL GROUP BY device, run ORDER BY min(position)
"""
_CHUNKS = """
SELECT seq, body FROM chunks
WHERE device = ? AND run = ? AND seq > ? AND body IS NOT NULL ORDER BY seq LIMIT ?
"""
_ARRIVED = """
SELECT position, body FROM chunks
WHERE position > ? AND body IS NOT NULL ORDER BY position LIMIT ?
"""
_GONE = """
SELECT (SELECT coalesce(sum(transitions), 0) FROM settled)
     + (SELECT coalesce(sum(transitions), 0) FROM chunks WHERE body IS NULL)
"""


@dataclass(frozen=True, slots=True)
class JournaledRun:
    """A run of which the journal still holds chunks.

    Attributes:
        key: Which run.
        chunks: How many are there with their bodies.
        first_seq: The first of them: over 0 where those before are gone, or never came.
    """

    key: RunKey
    chunks: int
    first_seq: int


@dataclass(frozen=True, slots=True, eq=False)
class JournaledChunk:
    """A chunk and its number in the run."""

    seq: int
    chunk: Chunk


class JournalReader:
    """Reads what a journal holds, a run at a time.

    >>> with JournalReader(state.journal) as journal:
    ...     for run in journal.runs():
    ...         for item in journal.chunks(run.key): ...
    """

    def __init__(self, path: Path) -> None:
        """Opens a journal for reading.

        Raises:
            JournalError: There is none, it cannot be read, or a newer program wrote it.
        """
        self._path = path
        if not path.is_file():
            raise JournalError(
                f"{path}: no journal here; give the state_dir of a learner (its file journal.db)"
            )
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0
            )
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        if not 1 <= version <= schema.SCHEMA_VERSION:  # chunks have been the same in all
            self._connection.close()
            raise JournalError(
                f"{path} has schema {version}, this program knows {schema.SCHEMA_VERSION}; use the "
                "program that wrote it"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def runs(self) -> list[JournaledRun]:
        """The runs, in the order in which they began to arrive.

        Raises:
            JournalError: The journal cannot be read.
        """
        try:
            with closing(self._connection.execute(_RUNS)) as cursor:
                rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return [
            JournaledRun(RunKey(device, run), chunks, first) for device, run, chunks, first in rows
        ]

    def chunks(self, run: RunKey, *, first_seq: int = 0) -> Iterator[JournaledChunk]:
        """The chunks of a run from `first_seq` on, in order; those that are gone are skipped.

        Raises:
            JournalError: The journal cannot be read, or a chunk in it is damaged.
        """
        after = first_seq - 1
        while rows := self._page(run, after):
            for seq, body in rows:
                try:
                    yield JournaledChunk(seq, decode_chunk(body))
                except WireError as error:
                    raise JournalError(
                        f"{self._path}: chunk {seq} of {run.device_id} (run {run.run_id.hex()}) is "
                        f"damaged: {error}"
                    ) from error
            after = rows[-1][0]

    def gone_steps(self) -> int:
        """Environment steps of chunks of which the journal has only the count any more.

        Raises:
            JournalError: The journal cannot be read.
        """
        try:
            (steps,) = self._connection.execute(_GONE).fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return int(steps)

    def arrivals(self) -> Iterator[Chunk]:
        """The chunks of all runs, in the order in which they came.

        Raises:
            JournalError: The journal cannot be read, or a chunk in it is damaged.
        """
        after = 0
        while True:
            try:
                with closing(self._connection.execute(_ARRIVED, (after, _PAGE_ROWS))) as cursor:
                    rows = cursor.fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from error
            if not rows:
                return
            for position, body in rows:
                try:
                    yield decode_chunk(body)
                except WireError as error:
                    raise JournalError(
                        f"{self._path}: the chunk at {position} is damaged: {error}"
                    ) from error
            after = rows[-1][0]

    def _page(self, run: RunKey, after: int) -> list[tuple[int, bytes]]:
        wanted = (run.device_id, run.run_id, after, _PAGE_ROWS)
        try:
            with closing(self._connection.execute(_CHUNKS, wanted)) as cursor:
                return cursor.fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"{self._path}: cannot be read ({error}); check that it is the journal.db of a learner "
            "and that this user may read it"
        )
