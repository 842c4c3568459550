"""The events of the fleet on disk, so that a learner that starts again still knows them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from cloud_learner.fleet.event_log import EventLog, LoggedEvent, Query
from cloud_learner.sqlite_store import SqliteStore
from cloud_learner.uninterrupted import in_thread_to_the_end
from shoal.errors import EventStoreError
from shoal.logs import get_logger
from shoal.v1 import device_pb2 as pb

SAVE_INTERVAL_S: Final = 1.0
SKIPPED_PLACES: Final = 1 << 20
"""Places that a start leaves out: more than were given out and not saved when a learner died."""
_TABLES: Final = """
CREATE TABLE log (log_id BLOB NOT NULL);
CREATE TABLE events (
    place INTEGER PRIMARY KEY, heard_unix_ms INTEGER NOT NULL, source TEXT NOT NULL,
    about TEXT NOT NULL, event BLOB NOT NULL);
"""
_log = get_logger("event_store")


class Unsaved(NamedTuple):
    """What the file lacks, oldest first, and the places that it should forget."""

    fresh: Sequence[LoggedEvent]
    gone: Collection[int]


class EventStore(SqliteStore):
    """A SQLite file with a row for each event that the log keeps.

    with EventStore(state.events) as store:
        store.fill(log)
        store.save(store.unsaved(log))
    """

    what, tables, schema_version, refusal = "events", _TABLES, 1, EventStoreError

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Opens the file, or makes it.

        Args:
            path: Of the file.
            clock: Monotonic seconds, the log's.
            wall: Seconds since 1970.

        Raises:
            EventStoreError: It cannot be opened, or a newer program wrote it.
        """
        super().__init__(path)
        self._clock = clock
        self._wall = wall
        self._saved_place = 0
        self._saved: set[int] = set()

    def fill(self, log: EventLog) -> None:
        """Puts what was saved into a log that is new.

        Raises:
            EventStoreError: The disk refuses, or the file holds what is none.
        """
        with self._lock:
            try:
                row = self._db.execute("SELECT log_id FROM log").fetchone()
                if row is None:
                    row = (os.urandom(16),)
                    self._db.execute("INSERT INTO log VALUES (?)", row)
                rows = self._db.execute("SELECT * FROM events ORDER BY place").fetchall()
                found = [self._logged(*each) for each in rows]
            except sqlite3.Error as error:
                raise self._failure(error) from error
            except (DecodeError, TypeError, ValueError) as error:
                raise EventStoreError(
                    f"events {self._path}: damaged ({error}); move it away: what happened before "
                    "is forgotten then"
                ) from error
        self._saved = {each.place for each in found}
        self._saved_place = max(self._saved, default=0)
        log.restore(row[0], found, after=self._saved_place + SKIPPED_PLACES if found else 0)

    def unsaved(self, log: EventLog) -> Unsaved:
        """What a log has and the file has not, and the other way round. For the event loop."""
        return Unsaved(log.after(self._saved_place, Query()), self._saved - log.places())

    def save(self, unsaved: Unsaved) -> None:
        """Makes it durable. Any thread, one at a time.

        Raises:
            EventStoreError: The disk refuses; what was not saved still is not.
        """
        fresh, gone = unsaved
        rows = [self._row(each) for each in fresh]
        if not rows and not gone:
            return
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?)", rows)
                self._db.executemany(
                    "DELETE FROM events WHERE place = ?", ((place,) for place in gone)
                )
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._failure(error) from error
        self._saved.difference_update(gone)
        self._saved |= {row[0] for row in rows}
        self._saved_place = max(self._saved, default=self._saved_place)

    def _row(self, logged: LoggedEvent) -> tuple[int, int, str, str, bytes]:
        heard_s = self._wall() - (self._clock() - logged.at_s)
        event = logged.event.SerializeToString(deterministic=True)
        return logged.place, int(heard_s * 1000), logged.source, logged.about, event

    def _logged(
        self, place: int, heard_unix_ms: int, source: str, about: str, event: bytes
    ) -> LoggedEvent:
        age_s = max(0.0, self._wall() - heard_unix_ms / 1000)
        return LoggedEvent(place, pb.Event.FromString(event), source, about, self._clock() - age_s)


async def save_events(log: EventLog, store: EventStore) -> None:
    """Saves at an interval, and at the end, for ever; a disk that refuses is said once."""
    refused = False
    try:
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            try:
                await in_thread_to_the_end(store.save, store.unsaved(log))
            except EventStoreError as error:
                if not refused:
                    _log.warning("events_not_saved", problem=str(error))
                refused = True
            else:
                refused = False
    finally:
        try:
            store.save(store.unsaved(log))
        except EventStoreError as error:
            _log.warning("events_not_saved", problem=str(error))
