"""The spool: the bounded queue on the device's disk, the only place data waits at the edge.

The control thread hands chunks over in memory and never waits for the disk. One writer thread
commits them in groups, each with an fsync, and only then are they visible to the uplink: whatever
was sent was durable before, so `kill -9` and a power cut can lose nothing that anyone has seen.
Acknowledged chunks leave by the same thread. Counts live in the same transactions as the chunks.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from edge_agent.events import Events
from edge_agent.spool.run_ledger import NOTHING, RunLedger
from edge_agent.spool.spool_file import SpooledChunk, SpoolFile, is_damaged, is_full, may_recover
from edge_agent.spool.spool_lock import spool_lock
from shoal.errors import SpoolError
from shoal.ranges import Ranges
from shoal.v1 import device_pb2 as pb

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may wait for the writer thread; beyond, the oldest waiting chunk is dropped."""
DELETIONS_WAIT_S: Final = 0.1
"""Acknowledged chunks alone are no hurry: those of this time leave with one transaction."""
READ_ATTEMPTS: Final = 3
"""Failed reads of a chunk after which it is counted as dropped."""
_ROOM_AGAIN: Final = 0.9
"""The spool counts as full until it has shrunk to this part of its bound."""


class Spool:
    """The device's queue of chunks.

    with Spool(path, max_bytes=2**28, run_id=run_id, events=events) as spool:
        seq = spool.append(body, policy_version=7)
        for chunk in spool.pending(8, exclude=frozenset()):
            send(chunk)
        spool.discard(run_id, acknowledged)
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        run_id: bytes,
        events: Events,
        oldest_version: Callable[[], int] = lambda: 0,
    ) -> None:
        """Describes the spool; nothing is touched until it is entered.

        Args:
            path: the file; a lock file and SQLite's own files lie beside it.
            max_bytes: bytes of bodies to hold at most.
            run_id: the present run, 16 bytes.
            events: where faults of the disk are told.
            oldest_version: chunks of versions before it expire; asked at each commit.
        """
        self._path = path
        self._file = SpoolFile(path)
        self._max_bytes = max_bytes
        self._run_id = run_id
        self._events = events
        self._oldest_version = oldest_version
        self._lock = threading.Condition()
        self._queue: deque[SpooledChunk] = deque()
        self._queued_bytes = 0
        self._acked: dict[bytes, Ranges] = {}
        self._refused: dict[bytes, Ranges] = {}
        self._runs: dict[bytes, RunLedger] = {run_id: RunLedger(run_id)}
        self._next_seq = 0
        self._size_bytes = 0
        self._busy = self._closing = self._full = self._hurry = self._look_again = False
        self._fault: str | None = None
        self._unreadable: Counter[tuple[bytes, int]] = Counter()
        self._listeners: tuple[Callable[[], object], ...] = ()
        self._writer = threading.Thread(target=self._write_forever, name="spool", daemon=True)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Opens the file, or makes it, and takes what earlier runs left.

        Raises:
            SpoolError: another process uses it, or the directory cannot be written.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(spool_lock(self._path))
            try:
                self._open()
            except sqlite3.Error as error:
                if not may_recover(error):
                    raise SpoolError(
                        f"spool {self._path}: {error}; give the agent a state_dir it may write"
                    ) from error
                self._failed(error)
            self._writer.start()
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commits what waits and closes the file."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._writer.join()
        self._file.close()
        self._opened.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of bodies on the disk."""
        return self._size_bytes

    @property
    def fault(self) -> str | None:
        """Why the disk refuses chunks now, or None."""
        return self._fault

    def append(self, body: bytes, policy_version: int) -> int:
        """Takes a chunk of the present run; never waits for the disk.

        Args:
            body: the encoded chunk.
            policy_version: the version that acted.

        Returns:
            Its sequence number.
        """
        with self._lock:
            seq = self._next_seq
            self._next_seq += 1
            self._queue.append(SpooledChunk(self._run_id, seq, policy_version, body))
            self._queued_bytes += len(body)
            while self._queued_bytes > MAX_QUEUED_BYTES and len(self._queue) > 1:
                oldest = self._queue.popleft()
                self._queued_bytes -= len(oldest.body)
                self._count(produced=oldest.seq + 1, dropped=Ranges.of([oldest.seq]))
            self._lock.notify_all()
        return seq

    def discard(self, run_id: bytes, acknowledged: Ranges) -> int:
        """Forgets chunks the learner acknowledged; what is not held is ignored.

        Returns:
            How many were held until now.
        """
        with self._lock:
            run = self._runs.get(run_id)
            held = run.spooled.intersection(acknowledged) if run is not None else NOTHING
            if run is None or not held:
                return 0
            self._runs[run_id] = replace(run, spooled=run.spooled.difference(held))
            self._acked[run_id] = self._acked.get(run_id, NOTHING).union(held)
            self._lock.notify_all()
        return held.count()

    def expire(self) -> None:
        """Looks again for what has expired; never waits for the disk."""
        with self._lock:
            self._look_again = True
            self._lock.notify_all()

    def ledger(self) -> tuple[RunLedger, ...]:
        """Every run's counts at one instant, oldest run first; never waits for the disk."""
        with self._lock:
            return tuple(self._runs.values())

    def pending(self, limit: int, exclude: Collection[tuple[bytes, int]]) -> list[SpooledChunk]:
        """The oldest chunks, in order.

        Args:
            limit: how many at most.
            exclude: `(run_id, seq)` of those not wanted.
        """
        found: list[SpooledChunk] = []
        for run in self.ledger():
            for seq in run.spooled:
                if len(found) >= limit:
                    return found
                if (run.run_id, seq) not in exclude:
                    chunk = self.read(run.run_id, seq)
                    found += [chunk] if chunk is not None else []
        return found

    def read(self, run_id: bytes, seq: int) -> SpooledChunk | None:
        """One chunk, or None when it is not held (any more) or the disk cannot give it."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or not run.spooled.contains(seq):
                return None
            oldest_seq = run.spooled.spans[0][0]
        try:
            chunk = self._file.read(run_id, seq)
        except sqlite3.Error as error:
            self._failed(error)
            self._unreadable[(run_id, seq)] += 1
            if self._unreadable[(run_id, seq)] >= READ_ATTEMPTS:
                self.give_up(run_id, seq)
            return None
        if chunk is None:
            self.give_up(run_id, seq)
            return None
        return replace(chunk, oldest_seq=oldest_seq)

    def give_up(self, run_id: bytes, seq: int) -> None:
        """Counts a chunk that can never be sent as dropped."""
        with self._lock:
            self._unreadable.pop((run_id, seq), None)
            run = self._runs.get(run_id)
            if run is not None and run.spooled.contains(seq):
                self._count(run_id, dropped=Ranges.of([seq]))
                self._acked[run_id] = self._acked.get(run_id, NOTHING).add(seq)
                self._lock.notify_all()

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Calls `listener` from the writer thread after each change, within the block."""
        self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was handed over is on the disk or counted as dropped.

        Returns:
            False when `timeout_s` passed first.
        """
        with self._lock:
            self._hurry = True
            self._lock.notify_all()
            return self._lock.wait_for(
                lambda: not (self._queue or self._acked or self._look_again or self._busy),
                timeout_s,
            )

    # What follows runs in the writer thread, but for `_open` at the start.

    def _open(self) -> None:
        """Opens the file and merges what it knows into the counts in memory."""
        try:
            known = self._file.open()
        except sqlite3.Error as error:
            if not is_damaged(error):
                raise
            self._start_over(error)
            known = self._file.open()
        with self._lock:
            merged = {run.run_id: run for run in known}
            for run in self._runs.values():
                merged[run.run_id] = run  # memory is newer than the disk
            self._runs = merged
            self._size_bytes = self._file.size_bytes

    def _write_forever(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(
                    lambda: self._queue or self._acked or self._look_again or self._closing
                )
                self._lock.wait_for(
                    lambda: self._queue or self._look_again or self._closing or self._hurry,
                    DELETIONS_WAIT_S,
                )
                self._hurry = False
                chunks = list(self._queue)
                acked = self._refused
                for run_id, ranges in self._acked.items():
                    acked[run_id] = acked.get(run_id, NOTHING).union(ranges)
                if self._closing and not chunks and not acked:
                    return
                closing = self._closing
                self._queue.clear()
                self._queued_bytes = 0
                self._acked, self._refused = {}, {}
                self._look_again, self._busy = False, True
            try:
                self._write(chunks, acked)
            except Exception as error:  # noqa: BLE001 a service border: it tells, counts, goes on
                self._refuse(chunks, acked, error)
            with self._lock:
                self._busy = False
                self._lock.notify_all()
            for listener in self._listeners:
                listener()
            if closing:
                return

    def _write(self, chunks: list[SpooledChunk], acked: dict[bytes, Ranges]) -> None:
        if not self._file.is_open:
            self._open()
        commit = self._file.commit(
            chunks,
            acked,
            self.ledger(),
            max_bytes=self._max_bytes,
            oldest_version=self._oldest_version(),
        )
        with self._lock:
            for run_id, expired in commit.expired.items():
                self._count(run_id, expired=expired)
            for run_id, dropped in commit.dropped.items():
                self._count(run_id, dropped=dropped)
            if chunks:
                self._count(produced=chunks[-1].seq + 1, spooled=commit.stored)
            for run_id in commit.forgotten:
                del self._runs[run_id]
            self._size_bytes = commit.size_bytes
        if self._fault is not None:
            self._fault = None
            self._events.emit(pb.SEVERITY_INFO, "spool_recovered", "the disk takes chunks again")
        if commit.dropped and not self._full:
            self._full = True
            self._events.emit(
                pb.SEVERITY_WARNING,
                "spool_full",
                f"the spool holds its {self._max_bytes} bytes; the oldest chunks are dropped",
                max_bytes=self._max_bytes,
            )
        if commit.size_bytes <= self._max_bytes * _ROOM_AGAIN:
            self._full = False

    def _refuse(
        self, chunks: list[SpooledChunk], acked: dict[bytes, Ranges], error: Exception
    ) -> None:
        """The disk refused: its new chunks are lost and counted, deletions wait for a next time."""
        with self._lock:
            self._refused = acked
            if chunks:
                lost = Ranges.of(chunk.seq for chunk in chunks)
                self._count(produced=chunks[-1].seq + 1, dropped=lost)
        self._failed(error)
        if is_damaged(error):
            self._start_over(error)
        elif not is_full(error):
            self._file.close_writer()  # the disk may come back: open it anew

    def _start_over(self, error: Exception) -> None:
        """The file is damaged: it is put aside, and every chunk it held is counted as dropped."""
        aside = self._file.move_aside()
        with self._lock:
            for run in tuple(self._runs.values()):
                self._count(run.run_id, dropped=run.spooled)
            self._refused = {}
            self._size_bytes = 0
        self._events.emit(
            pb.SEVERITY_ERROR,
            "spool_damaged",
            f"spool {self._path}: {error}; kept as {aside.name}, started a new one: check the disk",
        )

    def _count(
        self,
        run_id: bytes | None = None,
        *,
        produced: int = 0,
        spooled: Ranges = NOTHING,
        dropped: Ranges = NOTHING,
        expired: Ranges = NOTHING,
    ) -> None:
        run = self._runs[run_id or self._run_id]
        self._runs[run.run_id] = run.after(
            produced=produced, spooled=spooled, dropped=dropped, expired=expired
        )

    def _failed(self, error: Exception) -> None:
        if self._fault is None:
            self._events.emit(
                pb.SEVERITY_ERROR,
                "spool_fault",
                f"spool {self._path}: {error}; acting goes on and chunks are dropped: make room",
                error=str(error),
            )
        self._fault = str(error)
