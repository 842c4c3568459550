"""Chunks that wait together are one commit, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ingest_bench import CHUNK, GOOD, ingesting
from sim import SimDevice, on_loop, until

from cloud_learner.journal.audit import Decided, RunKey
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.training.cursor import Cursor
from cloud_learner.uplink.admission import Standard
from cloud_learner.uplink.arrivals import OpenedChunks, open_chunks
from cloud_learner.uplink.inbox import Message
from shoal.errors import JournalError
from shoal.ranges import Ranges


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
