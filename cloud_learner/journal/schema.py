"""The journal's tables and the statements on them."""

from __future__ import annotations

import sqlite3
import struct

from cloud_learner.journal.audit import Disposition
from shoal.errors import JournalError
from shoal.ranges import Ranges

SCHEMA_VERSION = 3
SEGMENTED_SINCE = 3
PAGE_BYTES = 4096
"""Of a new file: a commit writes a few of them, however little is on each."""

CODES = {Disposition.TRAINED: 1, Disposition.EXPIRED: 2, Disposition.REJECTED: 3}
DISPOSITIONS = {code: disposition for disposition, code in CODES.items()}

# One row for each chunk, in the order of arrival. Positions are never used twice. Its body is in a
# segment; those that version 2 and earlier wrote are in the row.
# `segments` has the numbers of those that were ever named, until they are deleted.
# `settled` keeps, for each run, the keys of rows that retention took away, and their sums.
# `reports` keeps what devices said of their runs, so that the audit outlives a restart.
TABLES = """
CREATE TABLE chunks (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    run BLOB NOT NULL,
    seq INTEGER NOT NULL,
    disposition INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    transitions INTEGER NOT NULL,
    episodes INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL,
    reason TEXT NOT NULL,
    body BLOB,
    segment INTEGER,
    start INTEGER,
    length INTEGER,
    UNIQUE (device, run, seq)
);
CREATE TABLE segments (number INTEGER PRIMARY KEY);
CREATE TABLE settled (
    device TEXT NOT NULL,
    run BLOB NOT NULL,
    trained BLOB NOT NULL,
    expired BLOB NOT NULL,
    rejected BLOB NOT NULL,
    transitions INTEGER NOT NULL,
    episodes INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL,
    PRIMARY KEY (device, run)
) WITHOUT ROWID;
CREATE TABLE reports (
    device TEXT NOT NULL,
    run BLOB NOT NULL,
    produced INTEGER NOT NULL,
    spooled BLOB NOT NULL,
    dropped BLOB NOT NULL,
    expired BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (device, run)
) WITHOUT ROWID;
"""
FROM_VERSION_2 = """
ALTER TABLE chunks ADD COLUMN segment INTEGER;
ALTER TABLE chunks ADD COLUMN start INTEGER;
ALTER TABLE chunks ADD COLUMN length INTEGER;
CREATE TABLE segments (number INTEGER PRIMARY KEY);
"""
FROM_VERSION_1 = (
    f"ALTER TABLE reports ADD COLUMN expired BLOB NOT NULL DEFAULT x'';{FROM_VERSION_2}"
)

INSERT_CHUNK = """
INSERT INTO chunks (position, device, run, seq, disposition, policy_version, transitions, episodes,
                    body_bytes, reason, segment, start, length)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
KEYS = "SELECT device, run, seq, disposition FROM chunks ORDER BY position"
SETTLED = "SELECT device, run, trained, expired, rejected FROM settled"
TOTALS = """
SELECT coalesce(sum(transitions), 0), coalesce(sum(episodes), 0), coalesce(sum(body_bytes), 0)
FROM (SELECT transitions, episodes, body_bytes FROM chunks
      UNION ALL SELECT transitions, episodes, body_bytes FROM settled)
"""
LAST_POSITION = "SELECT seq FROM sqlite_sequence WHERE name = 'chunks'"
HELD = "SELECT coalesce(sum(coalesce(length, length(body))), 0), count(*) FROM chunks"
ROWS_IN_SEGMENTS = """
SELECT segment, count(*) FROM chunks WHERE segment IS NOT NULL GROUP BY segment
"""
SEGMENTS = "SELECT number FROM segments"
PUT_SEGMENT = "INSERT OR IGNORE INTO segments (number) VALUES (?)"
FORGET_SEGMENT = "DELETE FROM segments WHERE number = ?"
KEY_AT = "SELECT device, run, seq, disposition FROM chunks WHERE position = ?"
REDISPOSE = "UPDATE chunks SET disposition = ? WHERE position = ?"
AFTER = """
SELECT position, device, run, seq, disposition, policy_version, body, segment, start, length
FROM chunks
WHERE position > ? AND (segment IS NOT NULL OR body IS NOT NULL) ORDER BY position LIMIT ?
"""
BEFORE = """
SELECT position, device, run, seq, disposition, policy_version, body, segment, start, length
FROM chunks
WHERE position < ? AND (segment IS NOT NULL OR body IS NOT NULL) ORDER BY position DESC LIMIT ?
"""
OLDEST = """
SELECT position, device, run, seq, disposition, transitions, episodes, body_bytes,
       segment, coalesce(length, length(body), 0)
FROM chunks WHERE position > ? AND position <= ? ORDER BY position LIMIT ?
"""
DELETE_CHUNK = "DELETE FROM chunks WHERE position = ?"
SETTLED_OF = """
SELECT trained, expired, rejected, transitions, episodes, body_bytes FROM settled
WHERE device = ? AND run = ?
"""
PUT_SETTLED = """
INSERT OR REPLACE INTO settled (device, run, trained, expired, rejected, transitions, episodes,
                                body_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
REPORTS = "SELECT device, run, produced, spooled, dropped, expired FROM reports"
PUT_REPORT = """
INSERT OR REPLACE INTO reports (device, run, produced, spooled, dropped, expired)
VALUES (?, ?, ?, ?, ?, ?)
"""

_SPAN = struct.Struct("<QQ")


def pack(ranges: Ranges) -> bytes:
    """A set of sequence numbers as bytes."""
    return b"".join(_SPAN.pack(start, stop) for start, stop in ranges.spans)


def unpack(data: bytes) -> Ranges:
    """The set that ``pack`` wrote.

    Raises:
        JournalError: the bytes are damaged.
    """
    if len(data) % _SPAN.size:
        raise JournalError("the journal holds a damaged set of sequence numbers; restore a backup")
    return Ranges.from_spans(_SPAN.iter_unpack(data))


def prepare(connection: sqlite3.Connection, where: str) -> None:
    """Makes the tables in a new file, or brings those of an earlier version up to date.

    Raises:
        JournalError: the file was written by a newer program.
        sqlite3.Error: the file is not a database, or cannot be written.
    """
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES:d}")  # an old file keeps its own
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Some systems' SQLite overwrites what is deleted: all that is pruned would be written again.
    connection.execute("PRAGMA secure_delete = FAST")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    steps = {0: TABLES, 1: FROM_VERSION_1, 2: FROM_VERSION_2}.get(version)
    if steps is not None:
        connection.executescript(f"BEGIN; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    elif version != SCHEMA_VERSION:
        raise JournalError(
            f"{where} has schema {version}, this program knows {SCHEMA_VERSION}; "
            "update it, or use another state_dir"
        )
