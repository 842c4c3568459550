"""The journal: the learner's durable record of every chunk it decided on, each exactly once."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cloud_learner.config import JournalConfig
from cloud_learner.journal import schema
from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport
from cloud_learner.journal.frames import frame_of
from cloud_learner.journal.index import Index
from cloud_learner.journal.records import Entry, JournalTotals, Record
from cloud_learner.journal.retention import ROW_BYTES, Pruned, prune_page
from cloud_learner.journal.rows import read_page, row_of
from cloud_learner.journal.segment_reader import SegmentReader
from cloud_learner.journal.segments import Segments, Written, directory_of
from cloud_learner.training.cursor import Cursor
from shoal.errors import JournalError
from shoal.logs import get_logger
from shoal.ranges import Ranges

_NEWEST: Final = (1 << 63) - 1
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_LEAST_SEGMENT_BYTES: Final = 1024 * 1024
_log = get_logger("journal")


class Journal:
    """Decides once and for ever which chunks count. One transaction commits many (group commit).

    Bodies lie in segments beside the file, which is their index: they are on the disk before it
    names them. Writes come from any thread, one at a time; reads of decisions never wait for one.

    >>> with Journal(state_dir / "journal.db", JournalConfig()) as journal:
    ...     positions = journal.append_many(entries)   # None where the key was there already
    ...     journal.decided(RunKey("pi-1", run_id)).settled
    """

    def __init__(self, path: Path, config: JournalConfig) -> None:
        """Opens the journal, or makes a new one.

        Raises:
            JournalError: the file cannot be opened or written, or is not a journal.
        """
        self._directory = directory_of(path)
        self._retain_bytes = config.retain_bytes
        self._max_bytes = config.max_file_bytes
        self._index = Index(path, max_file_bytes=config.max_file_bytes)
        try:
            loaded = self._index.load()
            self._decided = loaded.decided
            self._totals = loaded.totals
            self._held_bytes = loaded.held_bytes
            self._last_position = loaded.last_position
            self._rows_in = loaded.rows_in
            self._known_segments = loaded.segments
            self._segments = Segments(
                self._directory,
                segment_bytes=_segment_bytes(config),
                after=max(loaded.segments, default=0),
            )
            for number in sorted(loaded.rows_in.keys() - self._segments.numbers):
                _log.error("segment_missing", segment=number, chunks=loaded.rows_in[number])
            with self._index.transaction("read") as connection:
                self._delete_unnamed(connection)
        except OSError as error:
            self._index.close()
            raise self._index.failure("read", error) from error
        except JournalError:
            self._index.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._index.close()
        self._segments.close()

    @property
    def totals(self) -> JournalTotals:
        """Sums over every chunk ever accepted."""
        return self._totals

    @property
    def last_position(self) -> int:
        """The highest position ever given out; 0 for none."""
        return self._last_position

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
        with self._index.transaction("append to") as connection:
            positions: list[int | None] = []
            fresh: dict[RunKey, dict[int, Disposition]] = defaultdict(dict)
            new: list[Entry] = []
            for entry in entries:
                run = RunKey(entry.key.device_id, entry.key.run_id)
                if entry.key.seq in fresh[run] or self.decided(run).contains(entry.key.seq):
                    positions.append(None)
                    continue
                fresh[run][entry.key.seq] = entry.disposition
                new.append(entry)
                positions.append(self._last_position + len(new))
            decided = {run: self._after(run, its) for run, its in fresh.items() if its}
            self._append(connection, new)
            self._decided.update(decided)
        return positions

    def _append(self, connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        """Bodies first, then the rows that name them; both are durable on return."""
        frames = [frame_of(entry) for entry in entries if entry.body]
        self._check_room(connection, sum(map(len, frames)))
        written = self._segments.write(frames) if frames else Written((), ())
        places = iter(written.extents)
        extents = [next(places) if entry.body else None for entry in entries]
        first = self._last_position + 1
        connection.executemany(schema.INSERT_CHUNK, map(row_of, count(first), entries, extents))
        new_segments = {extent.segment for extent in written.extents} - self._known_segments
        connection.executemany(schema.PUT_SEGMENT, [(number,) for number in new_segments])
        with self._segments.naming(written):
            connection.execute("COMMIT")
        self._known_segments |= new_segments
        self._rows_in.update(extent.segment for extent in written.extents)
        self._last_position += len(entries)
        self._held_bytes += sum(map(len, frames)) + len(entries) * ROW_BYTES
        self._totals = JournalTotals(
            self._totals.transitions + sum(entry.transitions for entry in entries),
            self._totals.episodes + sum(entry.episodes for entry in entries),
            self._totals.body_bytes + sum(len(entry.body) for entry in entries),
        )

    def redispose(self, positions: Sequence[int], disposition: Disposition) -> None:
        """Changes what was decided about chunks that are there: each still counts once.

        Raises:
            JournalError: the disk is full or broken; nothing was changed.
        """
        with self._index.transaction("write to") as connection:
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
            pruned = self._prune_page(cursor, held, after)
            deleted += pruned.chunks
            after = pruned.last
        return deleted

    def reports(self) -> dict[RunKey, RunReport]:
        """What devices said of their runs when it was last saved.

        Raises:
            JournalError: the journal cannot be read.
        """
        return self._index.reports()

    def save_reports(self, reports: Mapping[RunKey, RunReport]) -> None:
        """Keeps what devices said of these runs; an older report is as true as a newer one.

        Raises:
            JournalError: the disk is full or broken; nothing was changed.
        """
        self._index.save_reports(reports)

    def _after(self, run: RunKey, fresh: Mapping[int, Disposition]) -> Decided:
        """What is decided about a run once these chunks of it are."""
        after = self.decided(run)
        for disposition in set(fresh.values()):
            seqs = Ranges.of(seq for seq, its in fresh.items() if its is disposition)
            after = after.with_chunks(seqs, disposition)
        return after

    def _prune_page(self, cursor: Cursor, kept: AbstractSet[int], after: int) -> Pruned:
        with self._index.transaction("prune") as connection:
            pruned = prune_page(
                connection, cursor, kept, after=after, excess_bytes=self.excess_bytes
            )
            connection.execute("COMMIT")
            self._held_bytes -= pruned.freed_bytes
            self._rows_in -= pruned.by_segment  # one that no row names any more is left out
            self._delete_unnamed(connection)
        return pruned

    def _delete_unnamed(self, connection: sqlite3.Connection) -> None:
        """Deletes segments that no row on the disk names any more.

        One that this index never named is left alone: it may be that of another.
        """
        unnamed = self._known_segments - self._rows_in.keys()
        if unnamed:
            gone = self._segments.delete(unnamed)
            self._known_segments -= gone
            with contextlib.suppress(sqlite3.Error):  # then it is known longer than it is there
                connection.executemany(schema.FORGET_SEGMENT, [(number,) for number in gone])
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def _check_room(self, connection: sqlite3.Connection, more_bytes: int) -> None:
        """Refuses to grow beyond the cap, as a full disk would.

        Raises:
            OSError: There is no room.
        """
        taken = self._segments.total_bytes + more_bytes
        if self._max_bytes and taken + self._index.size_bytes(connection) > self._max_bytes:
            raise OSError(errno.ENOSPC, "journal.max_file_bytes is full")

    def _page(self, statement: str, position: int) -> list[Record]:
        with (
            self._index.transaction("read") as connection,
            SegmentReader(self._directory) as reader,
        ):
            return read_page(connection, reader, statement, position)


_UNDECIDED = Decided()


def _segment_bytes(config: JournalConfig) -> int:
    """How large segments are: a small part of what is retained, as they leave whole."""
    size = min(max(config.retain_bytes // 16, _LEAST_SEGMENT_BYTES), _SEGMENT_BYTES)
    return min(size, config.max_file_bytes // 8) if config.max_file_bytes else size
