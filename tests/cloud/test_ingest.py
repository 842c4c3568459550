"""Chunks from the broker to the journal: each decided once, acknowledged when it is on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ingest_bench import CHUNK, COLUMNS, FOREIGN, GOOD, SPEC, events_of, ingesting, standard
from sim import TOPICS, SimDevice, on_loop, until
from strategies import make_chunk

from cloud_learner.journal.audit import RunKey
from cloud_learner.uplink.inbox import Message
from shoal.errors import WireError
from shoal.trajectory import encode_chunk


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
