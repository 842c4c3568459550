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
from cloud_learner.journal.frames import body_in
from cloud_learner.journal.segment_reader import SegmentReader
from cloud_learner.journal.segments import Extent, directory_of
from shoal.envelope import ChunkKey
from shoal.errors import JournalError, JournalMissing, WireError
from shoal.trajectory import Chunk, decode_chunk

# Pages, so that no read holds the journal's write-ahead log for long.
_PAGE_ROWS = 64
_RUNS = """
SELECT device, run, count(*), min(seq) FROM chunks
WHERE {there} GROUP BY device, run ORDER BY min(position)
"""
_CHUNKS = """
SELECT seq, body, {extent} FROM chunks
WHERE device = ? AND run = ? AND seq > ? AND {there} ORDER BY seq LIMIT ?
"""
_ARRIVED = """
SELECT position, device, run, seq, body, {extent} FROM chunks
WHERE position > ? AND {there} ORDER BY position LIMIT ?
"""
_GONE = """
SELECT (SELECT coalesce(sum(transitions), 0) FROM settled)
     + (SELECT coalesce(sum(transitions), 0) FROM chunks WHERE NOT {there})
"""
_THERE = "(segment IS NOT NULL OR body IS NOT NULL)"
_EXTENT = "segment, start, length"
_THERE_BEFORE_SEGMENTS, _EXTENT_BEFORE_SEGMENTS = "body IS NOT NULL", "NULL, NULL, NULL"


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


@dataclass(frozen=True, slots=True)
class _Row:
    seq: int
    body: bytes
    extent: Extent | None


class JournalReader:
    """Reads what a journal holds, a run at a time.

    >>> with JournalReader(state.journal) as journal:
    ...     for run in journal.runs():
    ...         for item in journal.chunks(run.key): ...
    """

    def __init__(self, path: Path) -> None:
        """Opens a journal for reading.

        Raises:
            JournalMissing: There is none.
            JournalError: It cannot be read, or a newer program wrote it.
        """
        self._path = path
        if not path.is_file():
            raise JournalMissing(
                f"{path}: no journal here; give the state_dir of a learner (its file journal.db)"
            )
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0
            )
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._segments = SegmentReader(directory_of(path))
        except sqlite3.Error as error:
            raise self._failure(error) from error
        if not 1 <= version <= schema.SCHEMA_VERSION:  # chunks have been the same in all
            self._connection.close()
            raise JournalError(
                f"{path} has schema {version}, this program knows {schema.SCHEMA_VERSION}; use the "
                "program that wrote it"
            )
        segmented = version >= schema.SEGMENTED_SINCE
        columns = {
            "there": _THERE if segmented else _THERE_BEFORE_SEGMENTS,
            "extent": _EXTENT if segmented else _EXTENT_BEFORE_SEGMENTS,
        }
        self._runs, self._chunks = _RUNS.format(**columns), _CHUNKS.format(**columns)
        self._arrivals, self._gone = _ARRIVED.format(**columns), _GONE.format(**columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._segments.close()
        self._connection.close()

    def runs(self) -> list[JournaledRun]:
        """The runs, in the order in which they began to arrive.

        Raises:
            JournalError: The journal cannot be read.
        """
        try:
            with closing(self._connection.execute(self._runs)) as cursor:
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
            for row in rows:
                try:
                    body = self._body(run, row)
                    if body is not None:
                        yield JournaledChunk(row.seq, decode_chunk(body))
                except (WireError, OSError) as error:
                    raise JournalError(
                        f"{self._path}: chunk {row.seq} of {run.device_id} (run "
                        f"{run.run_id.hex()}) is damaged: {error}"
                    ) from error
            after = rows[-1].seq

    def gone_steps(self) -> int:
        """Environment steps of chunks of which the journal has only the count any more.

        Raises:
            JournalError: The journal cannot be read.
        """
        try:
            (steps,) = self._connection.execute(self._gone).fetchone()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return int(steps)

    def arrivals(self) -> Iterator[Chunk]:
        """The chunks of all runs, in the order in which they came.

        Raises:
            JournalError: The journal cannot be read, or a chunk in it is damaged.
        """
        after = 0
        while rows := self._arrived(after):
            for position, run, row in rows:
                try:
                    body = self._body(run, row)
                    if body is not None:
                        yield decode_chunk(body)
                except (WireError, OSError) as error:
                    raise JournalError(
                        f"{self._path}: the chunk at {position} is damaged: {error}"
                    ) from error
            after = rows[-1][0]

    def _arrived(self, after: int) -> list[tuple[int, RunKey, _Row]]:
        try:
            with closing(self._connection.execute(self._arrivals, (after, _PAGE_ROWS))) as cursor:
                return [
                    (
                        position,
                        RunKey(device, run),
                        _Row(seq, body, Extent(*extent) if extent[0] is not None else None),
                    )
                    for position, device, run, seq, body, *extent in cursor
                ]
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _body(self, run: RunKey, row: _Row) -> bytes | memoryview | None:
        """A body; None when the learner deleted it since the row was read.

        Raises:
            WireError: It is damaged.
            OSError: It cannot be read.
        """
        if row.extent is None:
            return row.body
        try:
            frame = self._segments.read(row.extent)
        except FileNotFoundError:
            again = self._page(run, row.seq - 1)
            if again and again[0].seq == row.seq:
                raise
            return None
        return body_in(frame, ChunkKey(run.device_id, run.run_id, row.seq))

    def _page(self, run: RunKey, after: int) -> list[_Row]:
        wanted = (run.device_id, run.run_id, after, _PAGE_ROWS)
        try:
            with closing(self._connection.execute(self._chunks, wanted)) as cursor:
                return [
                    _Row(seq, body, Extent(*extent) if extent[0] is not None else None)
                    for seq, body, *extent in cursor
                ]
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"{self._path}: cannot be read ({error}); check that it is the journal.db of a learner "
            "and that this user may read it"
        )
