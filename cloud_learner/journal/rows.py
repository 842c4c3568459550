"""Rows of the index, and the entries and records that they stand for."""

from __future__ import annotations

import sqlite3
from typing import Final

from cloud_learner.journal import schema
from cloud_learner.journal.frames import body_in
from cloud_learner.journal.records import Entry, Record
from cloud_learner.journal.segment_reader import SegmentReader
from cloud_learner.journal.segments import Extent
from shoal.envelope import ChunkKey
from shoal.errors import WireError
from shoal.logs import get_logger

_PAGE_ROWS: Final = 256
_log = get_logger("journal")


def row_of(position: int, entry: Entry, extent: Extent | None) -> tuple[object, ...]:
    """The row of an entry; its body lies at the extent, or there is none."""
    return (
        position,
        entry.key.device_id,
        entry.key.run_id,
        entry.key.seq,
        schema.CODES[entry.disposition],
        entry.policy_version,
        entry.transitions,
        entry.episodes,
        len(entry.body),
        entry.reason,
        *((None, None, None) if extent is None else (extent.segment, extent.start, extent.length)),
    )


def read_page(
    connection: sqlite3.Connection, segments: SegmentReader, statement: str, position: int
) -> list[Record]:
    """The next records with bodies, within a transaction.

    Args:
        connection: In a transaction.
        segments: Where bodies lie.
        statement: `schema.AFTER` or `schema.BEFORE`.
        position: The last one that was read.

    Raises:
        sqlite3.Error: The index cannot be read.
    """
    rows = connection.execute(statement, (position, _PAGE_ROWS)).fetchall()
    keys = [ChunkKey(row[1], row[2], row[3]) for row in rows]
    return [
        Record(
            position=row[0],
            key=key,
            disposition=schema.DISPOSITIONS[row[4]],
            policy_version=row[5],
            body=row[6] if row[7] is None else _body(segments, Extent(*row[7:]), key),
        )
        for row, key in zip(rows, keys, strict=True)
    ]


def _body(segments: SegmentReader, extent: Extent, key: ChunkKey) -> bytes | memoryview:
    """A body; nothing where the disk damaged it, as whoever opens it then finds."""
    try:
        return body_in(segments.read(extent), key)
    except (WireError, OSError) as error:
        _log.error(
            "segment_damaged",
            segment=extent.segment,
            start=extent.start,
            device_id=key.device_id,
            run_id=key.run_id,
            seq=key.seq,
            error=str(error),
        )
        return b""
