"""Journals as versions 1 and 2 wrote them: bodies in the rows, and no segments."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from cloud_learner.journal import schema
from cloud_learner.journal.records import Entry

_CHUNKS = """
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
    UNIQUE (device, run, seq)
);
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
    PRIMARY KEY (device, run)
) WITHOUT ROWID;
"""
_EXPIRED = "ALTER TABLE reports ADD COLUMN expired BLOB NOT NULL DEFAULT x'';"
_INSERT = """
INSERT INTO chunks (device, run, seq, disposition, policy_version, transitions, episodes,
                    body_bytes, reason, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def write_old_journal(path: Path, entries: Sequence[Entry], *, version: int) -> None:
    """Makes one with these chunks in it, at positions from 1 on."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    more = {1: "", 2: _EXPIRED}[version]
    connection.executescript(f"BEGIN; {_CHUNKS}{more} PRAGMA user_version = {version}; COMMIT;")
    for entry in entries:
        key = entry.key
        row = (
            *(key.device_id, key.run_id, key.seq, schema.CODES[entry.disposition]),
            *(entry.policy_version, entry.transitions, entry.episodes),
            *(len(entry.body), entry.reason, bytes(entry.body) or None),
        )
        connection.execute(_INSERT, row)
    connection.close()
