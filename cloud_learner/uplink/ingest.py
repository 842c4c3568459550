"""Ingest: from the broker's messages to durable decisions, acknowledgements, replay and fleet."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cloud_learner.config import IngestConfig
from cloud_learner.fleet.fleet import Fleet
from cloud_learner.journal.audit import Disposition, RunKey
from cloud_learner.journal.journal import Journal
from cloud_learner.training.experience import Admitted
from cloud_learner.training.source import Source
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.acks import Acks
from cloud_learner.uplink.admission import Standard
from cloud_learner.uplink.arrivals import (
    Arrival,
    OpenedChunks,
    Refusal,
    open_chunks,
    open_reports,
)
from cloud_learner.uplink.inbox import Inbox, Message
from cloud_learner.uplink.throttle import Throttle
from shoal.errors import JournalError
from shoal.logs import get_logger
from shoal.services import backoff

RETRY_BASE_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
TELL_AGAIN_S: Final = 10.0
"""Rejected chunks of a device are told of this often for each reason, with their count."""
MANY: Final = 8
"""Chunks that are opened while the disk is at work; fewer wait for it, to be one commit."""
_log = get_logger("ingest")

JOURNAL_FULL: Final = "journal_full"


@dataclass(frozen=True, slots=True)
class IngestParts:
    """What ingest works on."""

    inbox: Inbox
    journal: Journal
    replay: Source
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]


@dataclass(frozen=True, slots=True)
class _Unopened:
    """Messages as they came, and what their chunks are held against."""

    messages: Sequence[Message]
    standard: Standard


@dataclass(frozen=True, slots=True)
class _Tried:
    """What was opened, and where the journal has it; nowhere when that failed."""

    opened: OpenedChunks
    positions: list[int | None]
    failure: JournalError | None = None


class Ingest:
    """Each chunk is validated, decided, journaled, acknowledged and only then trained from.

    Chunks that wait together are committed together, so one fsync serves many (group commit), and
    while the disk works the next ones are opened already. When the journal cannot be written
    nothing is acknowledged: the devices keep their chunks.

    ingest = Ingest(parts, config, standard, publish_ack)
    await run_services({"chunks": ingest.serve_chunks, "commits": ingest.serve_commits, ...})
    """

    def __init__(
        self,
        parts: IngestParts,
        config: IngestConfig,
        *,
        standard: Callable[[], Standard | None],
        publish_ack: Callable[[str, bytes], None],
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Joins the parts.

        Args:
            parts: What it works on.
            config: Bounds.
            standard: What chunks are held against now; None before any space is known.
            publish_ack: Sends a framed ack to a device.
            rng: For the jitter of retries.
            clock: Monotonic seconds.
        """
        self._parts = parts
        self._config = config
        self._standard = standard
        self._publish_ack = publish_ack
        self._rng = rng
        self._clock = clock
        self._acks = Acks(parts.journal.decided)
        self._throttle = Throttle(TELL_AGAIN_S, clock=clock)
        self._opened: list[Arrival] = []  # as many as a batch at most wait for the journal
        self._unopened: _Unopened | None = None  # for a disk that has nothing to do
        self._committing = False
        self._filled, self._emptied = asyncio.Event(), asyncio.Event()
        self.last_chunk_s: float | None = None
        self.last_report_s: float | None = None

    async def serve_reports(self) -> None:
        """Folds status, telemetry and events into the fleet, until cancelled."""
        parts = self._parts
        while True:
            messages = await parts.inbox.reports.take(self._config.max_batch_messages)
            self.last_report_s = self._clock()
            opened = open_reports(messages)
            self._note_refusals(opened.refusals)
            for status in opened.statuses:
                parts.fleet.note_status(status)
            for telemetry in opened.telemetries:
                parts.fleet.note_telemetry(telemetry)
            for event in opened.events:
                parts.fleet.note_event(event)

    async def serve_chunks(self) -> None:
        """Opens chunks and decides about them, until cancelled.

        While the disk is at work they are opened only when many wait: fewer and larger commits.
        A chunk that came twice may be opened twice: whether it is new, the journal alone says.
        """
        parts = self._parts
        while True:
            while (room := self._config.max_batch_messages - len(self._opened)) <= 0:
                self._emptied.clear()
                await self._emptied.wait()
            messages = await parts.inbox.chunks.take(room)
            self.last_chunk_s = self._clock()
            parts.stats.note_bytes(sum(len(message.payload) for message in messages))
            standard = self._standard()
            if standard is None:
                parts.counters["chunks_before_spec"] += len(messages)
                continue
            unopened = _Unopened(messages, standard)
            if not self._committing:  # one thread opens them and writes them
                self._unopened = unopened
                self._begin_commit()
                continue
            opened = await asyncio.to_thread(self._open, unopened)
            self._note_refusals(opened.refusals)
            self._opened += opened.arrivals
            if opened.arrivals:
                self._begin_commit()

    async def serve_commits(self) -> None:
        """Makes what was decided durable, acknowledges it and hands it on, until cancelled.

        All that was opened while the disk was at work is one commit.
        """
        while True:
            await self._filled.wait()
            self._filled.clear()
            unopened, self._unopened = self._unopened, None
            if unopened is not None:
                await self._open_and_settle(unopened)
            if self._opened:
                arrivals, self._opened = self._opened, []
                self._emptied.set()
                self._settle(arrivals, await self._commit(arrivals))
            if not self._filled.is_set():
                self._committing = False
                self._parts.inbox.chunks.enough = 1

    async def repeat_acks(self) -> None:
        """Repeats recent acknowledgements, since each travels at QoS 0; until cancelled."""
        while True:
            await asyncio.sleep(self._config.ack_repeat_s)
            due = self._acks.due(
                self._clock(),
                every_s=self._config.ack_repeat_s,
                window_s=self._config.ack_repeat_window_s,
            )
            self._acknowledge(due)

    def _begin_commit(self) -> None:
        self._committing = True
        self._parts.inbox.chunks.enough = min(MANY, self._config.max_batch_messages)
        self._filled.set()

    async def _open_and_settle(self, unopened: _Unopened) -> None:
        tried = await asyncio.to_thread(self._open_and_append, unopened)
        opened = tried.opened
        self._note_refusals(opened.refusals)
        if opened.arrivals:
            positions = tried.positions or await self._commit(opened.arrivals, tried.failure)
            self._settle(opened.arrivals, positions)

    def _open(self, unopened: _Unopened) -> OpenedChunks:
        return open_chunks(
            unopened.messages,
            unopened.standard,
            self._parts.journal.decided,
            max_bytes=self._config.max_message_bytes,
        )

    def _open_and_append(self, unopened: _Unopened) -> _Tried:
        """In a worker thread."""
        opened = self._open(unopened)
        entries = [arrival.entry for arrival in opened.arrivals]
        try:
            return _Tried(opened, self._parts.journal.append_many(entries) if entries else [])
        except JournalError as error:
            return _Tried(opened, [], error)

    def _settle(self, arrivals: Sequence[Arrival], positions: Sequence[int | None]) -> None:
        """Acknowledges what is durable, and hands it on."""
        self._parts.fleet.clear_condition(JOURNAL_FULL)
        now_s = self._clock()
        for arrival in arrivals:
            self._acks.heard(arrival.run, oldest_seq=arrival.oldest_seq, now_s=now_s)
        self._acknowledge(dict.fromkeys(arrival.run for arrival in arrivals))
        self._parts.replay.add(self._note_settled(arrivals, positions))

    async def _commit(
        self, arrivals: Sequence[Arrival], failure: JournalError | None = None
    ) -> list[int | None]:
        """Makes decisions durable; while the disk refuses, tries again and nothing is acked.

        Args:
            arrivals: What was decided.
            failure: Of a try that was made already.
        """
        entries = [arrival.entry for arrival in arrivals]
        attempt = 0
        while True:
            if failure is not None:
                self._parts.counters["journal_failures"] += 1
                self._parts.fleet.raise_condition(JOURNAL_FULL, str(failure))
                wait_s = backoff(attempt, base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S, rng=self._rng)
                attempt += 1
                await asyncio.sleep(wait_s)
            try:
                positions = await asyncio.to_thread(self._parts.journal.append_many, entries)
            except JournalError as error:
                failure = error
            else:
                return positions

    def _note_settled(
        self, arrivals: Sequence[Arrival], positions: Sequence[int | None]
    ) -> list[Admitted]:
        parts = self._parts
        admitted: list[Admitted] = []
        rejected: Counter[tuple[str, str]] = Counter()
        details: dict[tuple[str, str], str] = {}
        for arrival, position in zip(arrivals, positions, strict=True):
            entry = arrival.entry
            if position is None:
                parts.counters["duplicates"] += 1
                continue
            parts.fleet.note_chunk(entry.key.device_id)
            if entry.disposition is Disposition.REJECTED:
                kind = (entry.key.device_id, entry.reason)
                rejected[kind] += 1
                details[kind] = arrival.detail
            else:
                parts.counters["accepted_chunks"] += 1
            if entry.disposition is Disposition.EXPIRED:
                parts.counters["expired_on_arrival"] += 1
            if arrival.chunk is None:
                continue
            parts.stats.note_chunk(arrival.chunk)
            if entry.disposition is Disposition.TRAINED:
                admitted.append(
                    Admitted(entry.key, position, arrival.chunk, arrival.version_updates)
                )
        for (device_id, reason), count in rejected.items():
            parts.counters[f"rejected_{reason}"] += count
            parts.fleet.note_rejected(device_id, reason, count)
            told = self._throttle.count_to_tell(("chunks_rejected", device_id, reason), count)
            if told:
                parts.fleet.record(
                    device_id,
                    "chunks_rejected",
                    details[device_id, reason],
                    reason=reason,
                    count=str(told),
                )
        return admitted

    def _note_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Counts what could not even be told apart, and says so once for each kind."""
        kinds: Counter[tuple[str, str]] = Counter()
        details: dict[tuple[str, str], str] = {}
        for refusal in refusals:
            kinds[refusal.device_id, refusal.name] += 1
            details[refusal.device_id, refusal.name] = refusal.detail
        for (device_id, name), count in kinds.items():
            self._parts.counters[name] += count
            told = self._throttle.count_to_tell((name, device_id), count)
            if told:
                detail = details[device_id, name]
                self._parts.fleet.record(device_id, name, detail, count=str(told))

    def _acknowledge(self, runs: Sequence[RunKey] | dict[RunKey, None]) -> None:
        for device_id, payloads in self._acks.messages(runs).items():
            for payload in payloads:
                self._publish_ack(device_id, payload)
                self._parts.counters["acks_sent"] += 1
