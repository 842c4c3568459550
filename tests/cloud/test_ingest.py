"""Chunks from the broker to the journal: each decided once, acknowledged when it is on disk."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sim import TOPICS, SimDevice, on_loop, until
from strategies import DIGEST, cartpole_spec, make_chunk

from cloud_learner.config import IngestConfig, JournalConfig
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided, RunKey
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.replay import Replay
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.arrivals import OpenedChunks, open_chunks
from cloud_learner.uplink.inbox import Inbox, Message
from cloud_learner.uplink.ingest import Ingest, IngestParts
from shoal.errors import JournalError, WireError
from shoal.packing import Packing
from shoal.ranges import Ranges
from shoal.trajectory import encode_chunk, encode_columns

TWIN = bytes(range(32, 64))
SPEC = cartpole_spec()
CHUNK = replace(make_chunk(SPEC), policy_version=1)
GOOD = encode_chunk(CHUNK)
COLUMNS = encode_columns(CHUNK, Packing())
FOREIGN = encode_chunk(replace(CHUNK, spec_fingerprint=bytes(32)))


def standard(*, updates_now: int = 0, max_lag: int = 10) -> Standard:
    versions = KnownVersions(lambda _: None, highest=0)
    versions.add(1, KnownVersion(0, DIGEST, (TWIN,)))
    return Standard(SPEC, versions, updates_now, max_lag)


@dataclass
class Bench:
    """An ingest with everything around it real but the broker."""

    inbox: Inbox
    journal: Journal
    replay: Replay
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]
    acks: list[tuple[str, bytes]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    standard: Standard | None = field(default_factory=standard)

    def publish_ack(self, device_id: str, payload: bytes) -> None:
        self.acks.append((device_id, payload))
        self.changed.set()


@asynccontextmanager
async def ingesting(
    path: Path, *, max_file_bytes: int = 0, max_batch_messages: int = 256
) -> AsyncIterator[Bench]:
    counters: Counter[str] = Counter()
    with Journal(path / "journal.db", JournalConfig(0, max_file_bytes)) as journal:
        replay, stats = Replay(10_000, batch_steps=2048), TrainingStats()
        facts = LearnerFacts(
            decided=journal.decided,
            updates=lambda: 0,
            updates_of=lambda _: None,
            replay_steps=lambda: replay.steps,
            counters=counters,
        )
        bench = Bench(Inbox.of(64), journal, replay, Fleet(facts, stats), stats, counters)
        ingest = Ingest(
            IngestParts(bench.inbox, journal, replay, bench.fleet, stats, counters),
            IngestConfig(ack_repeat_s=0.01, max_batch_messages=max_batch_messages),
            standard=lambda: bench.standard,
            publish_ack=bench.publish_ack,
            rng=random.Random(0),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ingest.serve_chunks()),
                group.create_task(ingest.serve_commits()),
                group.create_task(ingest.serve_reports()),
                group.create_task(ingest.repeat_acks()),
            ]
            yield bench
            for task in tasks:
                task.cancel()


def events_of(bench: Bench, device_id: str) -> list[str]:
    described = bench.fleet.describe(device_id)
    return [] if described is None else [known.event.name for known in described.events]


@on_loop
async def test_a_chunk_is_journaled_then_acknowledged_then_ready_to_train(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        key = device.produce(GOOD)
        bench.inbox.offer(device.message(key))
        await until(lambda: bool(bench.acks))
        assert bench.journal.decided(RunKey("pi-1", key.run_id)).trained.contains(0)
        device.hear_ack(bench.acks[0][1])
        assert device.held() == []
        await until(lambda: bench.replay.steps == CHUNK.transitions)
        assert bench.stats.env_steps == CHUNK.transitions


@on_loop
async def test_chunks_of_either_form_are_taken_in_and_damaged_ones_are_not(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        for body in (GOOD, COLUMNS, bytes([*COLUMNS[:70], COLUMNS[70] ^ 1, *COLUMNS[71:]])):
            try:
                bench.inbox.offer(device.message(device.produce(body)))
            except WireError:
                assert body not in (GOOD, COLUMNS)
        await until(lambda: bench.replay.steps == 2 * CHUNK.transitions)
        assert bench.counters["accepted_chunks"] == 2


@on_loop
async def test_an_ack_that_got_lost_is_repeated_and_resending_is_harmless(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        message = device.message(device.produce(GOOD))
        bench.inbox.offer(message)
        await until(lambda: len(bench.acks) > 2)
        bench.inbox.offer(message)
        await until(lambda: bench.counters["duplicates"] == 1)
        device.hear_ack(bench.acks[-1][1])
        assert device.held() == []
        assert bench.stats.env_steps == CHUNK.transitions
        assert bench.replay.steps == CHUNK.transitions


@on_loop
async def test_a_chunk_of_other_spaces_is_rejected_counted_told_and_deleted_by_its_device(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        bench.inbox.offer(device.message(device.produce(FOREIGN)))
        await until(lambda: bool(bench.acks))
        device.hear_ack(bench.acks[-1][1])
        assert device.held() == []
        await until(lambda: bench.counters["rejected_fingerprint"] == 1)
        assert events_of(bench, "pi-1") == ["chunks_rejected"]
        assert bench.replay.steps == 0
        bench.inbox.offer(device.telemetry_message())
        await until(lambda: bench.fleet.audit().total.rejected == 1)
        assert bench.fleet.audit().total.balanced


@on_loop
async def test_a_reward_that_training_would_not_survive_is_rejected_counted_and_told(
    tmp_path: Path,
) -> None:
    rewards = CHUNK.rewards.copy()
    rewards.flat[0] = -1e30
    absurd = encode_chunk(replace(CHUNK, rewards=rewards))
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        bench.inbox.offer(device.message(device.produce(absurd)))
        bench.inbox.offer(device.message(device.produce(GOOD)))
        await until(lambda: bench.counters["accepted_chunks"] == 1)
        assert bench.counters["rejected_reward"] == 1
        assert bench.replay.steps == CHUNK.transitions
        assert events_of(bench, "pi-1") == ["chunks_rejected"]


@on_loop
async def test_a_chunk_whose_body_is_damaged_is_rejected_and_deleted(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        key = device.produce(GOOD[:-8] + bytes(8))
        bench.inbox.offer(device.message(key))
        await until(lambda: bench.counters["rejected_malformed"] == 1)
        assert bench.journal.decided(RunKey("pi-1", key.run_id)).rejected.contains(0)


@on_loop
async def test_garbage_on_any_topic_is_counted_and_told_and_stops_nothing(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        topics = [TOPICS.trajectory("pi-1"), TOPICS.status("pi-1"), TOPICS.telemetry("pi-1")]
        for topic in [*topics, TOPICS.event("pi-1"), "other/topic", "shoal/v1/demo/99/x/up/status"]:
            for payload in (b"garbage", b"SHL\x09 another version", bytes(5000)):
                bench.inbox.offer(Message(topic, payload))
        bench.inbox.offer(Message(TOPICS.trajectory("pi-1"), b""))
        device = SimDevice("pi-2")
        bench.inbox.offer(device.message(device.produce(GOOD)))
        bench.inbox.offer(device.telemetry_message())
        await until(lambda: bench.replay.steps > 0)
        await until(lambda: bench.fleet.audit().total.produced == 1)
        assert bench.counters["garbage"] + bench.counters["unsupported_wire_version"] == 19
        assert {"garbage", "unsupported_wire_version"} <= set(events_of(bench, "pi-1"))


@on_loop
async def test_a_message_that_names_another_device_than_its_topic_is_refused(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path) as bench:
        victim = SimDevice("pi-1")
        message = victim.message(victim.produce(GOOD))
        bench.inbox.offer(Message(TOPICS.trajectory("pi-2"), message.payload))
        await until(lambda: bench.counters["wrong_sender"] == 1)
        assert events_of(bench, "pi-2") == ["wrong_sender"]
        assert bench.journal.runs() == {}


@on_loop
async def test_while_the_disk_is_full_nothing_is_acked_and_devices_are_still_heard(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path, max_file_bytes=262_144) as bench:
        bench.journal._max_bytes = 1
        device = SimDevice("pi-1")
        key = device.produce(encode_chunk(replace(make_chunk(SPEC, steps=4000), policy_version=1)))
        bench.inbox.offer(device.message(key))
        await until(lambda: bench.fleet.learner_state == "journal_full")
        bench.inbox.offer(device.telemetry_message())
        await until(lambda: bench.fleet.audit().total.in_flight == 1)
        assert bench.acks == []
        assert events_of(bench, "learner") == ["journal_full"]
        bench.journal._max_bytes = 1 << 30
        await until(lambda: bool(bench.acks))
        assert bench.fleet.learner_state != "journal_full"
        assert events_of(bench, "learner") == ["journal_full_cleared", "journal_full"]


@on_loop
async def test_many_chunks_are_opened_while_the_journal_writes_and_wait_in_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def open_and_note(
        messages: Sequence[Message],
        standard: Standard,
        decided: Callable[[RunKey], Decided],
        *,
        max_bytes: int,
    ) -> OpenedChunks:
        opened.append(len(messages))
        return open_chunks(messages, standard, decided, max_bytes=max_bytes)

    committed: list[int] = []
    append_many = Journal.append_many

    def append_and_note(journal: Journal, entries: Sequence[Entry]) -> list[int | None]:
        committed.append(len(entries))
        return append_many(journal, entries)

    monkeypatch.setattr("cloud_learner.uplink.ingest.open_chunks", open_and_note)
    monkeypatch.setattr(Journal, "append_many", append_and_note)
    async with ingesting(tmp_path, max_batch_messages=2) as bench:
        device = SimDevice("pi-1")
        with bench.journal._index._lock:  # the disk is slow
            bench.inbox.offer(device.message(device.produce(GOOD)))
            await until(lambda: opened == [1])  # it is written
            bench.inbox.offer(device.message(device.produce(GOOD)))
            await asyncio.sleep(0)
            assert (opened, len(bench.inbox.chunks)) == ([1], 1)  # that is not many
            bench.inbox.offer(device.message(device.produce(GOOD)))
            await until(lambda: opened == [1, 2])  # as many as a batch wait for the disk
            for _ in range(5):
                bench.inbox.offer(device.message(device.produce(GOOD)))
            await asyncio.sleep(0)
            assert (opened, len(bench.inbox.chunks), bench.acks) == ([1, 2], 5, [])
        await until(lambda: bench.replay.steps == 8 * CHUNK.transitions)
        assert committed[:2] == [1, 2]  # all that was opened meanwhile is one commit
        device.hear_ack(bench.acks[-1][1])
        assert device.held() == []


@on_loop
async def test_the_few_that_came_while_the_journal_wrote_are_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[int] = []
    append_many = Journal.append_many

    def append_and_note(journal: Journal, entries: Sequence[Entry]) -> list[int | None]:
        committed.append(len(entries))
        return append_many(journal, entries)

    monkeypatch.setattr(Journal, "append_many", append_and_note)
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        with bench.journal._index._lock:  # the disk is slow
            bench.inbox.offer(device.message(device.produce(GOOD)))
            await until(lambda: committed == [1])
            for _ in range(5):
                bench.inbox.offer(device.message(device.produce(GOOD)))
        await until(lambda: bench.replay.steps == 6 * CHUNK.transitions)
        assert committed == [1, 5]
        bench.inbox.offer(device.message(device.produce(GOOD)))  # and the next waits for nothing
        await until(lambda: bench.replay.steps == 7 * CHUNK.transitions)


@on_loop
async def test_what_is_refused_before_the_journal_leaves_the_way_free(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        message = device.message(device.produce(GOOD))
        bench.inbox.offer(Message(message.topic, b"noise"))
        await until(lambda: bench.counters["garbage"] == 1)
        bench.inbox.offer(message)
        await until(lambda: bench.replay.steps == CHUNK.transitions)


@on_loop
async def test_chunks_that_the_disk_refused_once_are_written_before_those_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_many, tries = Journal.append_many, iter((True, True))

    def refuse_at_first(journal: Journal, entries: Sequence[Entry]) -> list[int | None]:
        if next(tries, False):
            raise JournalError("no room")
        return append_many(journal, entries)

    monkeypatch.setattr(Journal, "append_many", refuse_at_first)
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        for _ in range(3):
            bench.inbox.offer(device.message(device.produce(GOOD)))
            await asyncio.sleep(0)
        await until(lambda: bench.replay.steps == 3 * CHUNK.transitions)
        assert bench.counters["journal_failures"] == 2
        kept = bench.journal.since(Cursor(0, Ranges()))
        assert [record.key.seq for record in kept] == [0, 1, 2]


@on_loop
async def test_the_same_chunk_twice_in_what_waits_for_the_journal_counts_once(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path, max_batch_messages=2) as bench:
        device = SimDevice("pi-1")
        message = device.message(device.produce(GOOD))
        with bench.journal._index._lock:
            for copies in (1, 2):
                for _ in range(copies):
                    bench.inbox.offer(message)
                await until(lambda: not len(bench.inbox.chunks))
        await until(lambda: bench.counters["duplicates"] == 2)
        assert bench.replay.steps == CHUNK.transitions
        assert bench.counters["accepted_chunks"] == 1


@on_loop
async def test_a_full_lane_drops_the_newest_and_the_resent_chunk_gets_in(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        messages = [device.message(device.produce(GOOD)) for _ in range(70)]
        for message in messages:
            bench.inbox.offer(message)
        assert bench.inbox.chunks.dropped == 6
        await until(lambda: bench.replay.steps == 64 * CHUNK.transitions)
        for message in messages[64:]:
            bench.inbox.offer(message)
        await until(lambda: bench.replay.steps == 70 * CHUNK.transitions)


@on_loop
async def test_chunks_that_come_before_any_space_is_known_are_left_with_their_device(
    tmp_path: Path,
) -> None:
    async with ingesting(tmp_path) as bench:
        bench.standard = None
        device = SimDevice("pi-1")
        message = device.message(device.produce(GOOD))
        bench.inbox.offer(message)
        await until(lambda: bench.counters["chunks_before_spec"] == 1)
        assert bench.acks == []
        bench.standard = standard()
        bench.inbox.offer(message)
        await until(lambda: bool(bench.acks))


@on_loop
async def test_a_flood_of_rejected_chunks_is_told_once_and_counted_whole(tmp_path: Path) -> None:
    async with ingesting(tmp_path) as bench:
        device = SimDevice("pi-1")
        for count in range(1, 6):
            bench.inbox.offer(device.message(device.produce(FOREIGN)))
            await until(lambda count=count: bench.counters["rejected_fingerprint"] == count)  # type: ignore[misc]
        assert events_of(bench, "pi-1") == ["chunks_rejected"]
        (seen,) = bench.fleet.devices()
        assert seen.reasons == ["5 chunks rejected in the last minute: fingerprint"]
