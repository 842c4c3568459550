"""Which chunks leave a journal that holds too much: the oldest that a checkpoint covers."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cloud_learner.journal import schema
from cloud_learner.journal.audit import Decided, RunKey
from cloud_learner.training.cursor import Cursor
from shoal.ranges import Ranges

PAGE_ROWS = 256
ROW_BYTES = 128
"""What a row without a body counts for."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What left with a page of the oldest chunks.

    Attributes:
        chunks: How many.
        freed_bytes: What they held.
        by_segment: How many of them had their bodies in each segment.
        last: The last position that was looked at.
    """

    chunks: int
    freed_bytes: int
    by_segment: Counter[int]
    last: int


@dataclass(slots=True)
class _Leaving:
    freed_bytes: int = 0
    by_segment: Counter[int] = field(default_factory=Counter)
    of_run: dict[RunKey, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))


def prune_page(
    connection: sqlite3.Connection,
    cursor: Cursor,
    kept: AbstractSet[int],
    *,
    after: int,
    excess_bytes: int,
) -> Pruned:
    """Deletes rows of the oldest chunks within a transaction; their keys and sums stay.

    Args:
        connection: In a transaction.
        cursor: What it covers may leave.
        kept: Positions that may not.
        after: Positions up to this one are not looked at.
        excess_bytes: No more than this has to leave.

    Raises:
        sqlite3.Error: The journal cannot be read or written.
    """
    rows = connection.execute(schema.OLDEST, (after, cursor.position, PAGE_ROWS)).fetchall()
    leaving = _Leaving()
    for position, device, run, *rest, segment, held in rows:
        if leaving.freed_bytes >= excess_bytes:
            break
        if cursor.covers(position) and position not in kept:
            connection.execute(schema.DELETE_CHUNK, (position,))
            leaving.of_run[RunKey(device, run)].append(tuple(rest))
            leaving.freed_bytes += held + ROW_BYTES
            if segment is not None:
                leaving.by_segment[segment] += 1
    for key, chunks in leaving.of_run.items():
        _fold(connection, key, chunks)
    return Pruned(
        chunks=sum(len(chunks) for chunks in leaving.of_run.values()),
        freed_bytes=leaving.freed_bytes,
        by_segment=leaving.by_segment,
        last=rows[-1][0] if len(rows) == PAGE_ROWS else cursor.position,
    )


def _fold(connection: sqlite3.Connection, run: RunKey, chunks: Sequence[tuple[int, ...]]) -> None:
    """Adds deleted rows (seq, disposition, transitions, episodes, body_bytes) to their run's."""
    key = (run.device_id, run.run_id)
    row = connection.execute(schema.SETTLED_OF, key).fetchone()
    decided = Decided(*(schema.unpack(blob) for blob in row[:3])) if row else Decided()
    sums = row[3:] if row else (0, 0, 0)
    for code, disposition in schema.DISPOSITIONS.items():
        seqs = Ranges.of(chunk[0] for chunk in chunks if chunk[1] == code)
        decided = decided.with_chunks(seqs, disposition)
    totals = (sums[at] + sum(chunk[at + 2] for chunk in chunks) for at in range(3))
    sets = (schema.pack(each) for each in (decided.trained, decided.expired, decided.rejected))
    connection.execute(schema.PUT_SETTLED, (*key, *sets, *totals))
