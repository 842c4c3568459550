"""The conservation law and exactly-once, through losses, duplicates, reordering and restarts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sim import SimDevice
from strategies import DIGEST, cartpole_spec, make_chunk

from cloud_learner.config import JournalConfig
from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport, audit_run
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.journal.reoffer import reoffer
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted
from cloud_learner.training.replay import Replay
from cloud_learner.training.source import Moment, Source
from cloud_learner.training.transition_replay import Sampling, TransitionReplay
from cloud_learner.uplink.acks import Acks
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.arrivals import open_chunks
from cloud_learner.uplink.inbox import Message
from shoal import zstd
from shoal.envelope import ChunkKey
from shoal.errors import JournalError
from shoal.ranges import Ranges
from shoal.trajectory import encode_chunk
from shoal.v1 import device_pb2 as pb

SPEC = cartpole_spec()
BODIES = {
    "good": encode_chunk(replace(make_chunk(SPEC), policy_version=2)),
    "old": encode_chunk(replace(make_chunk(SPEC), policy_version=1)),
    "foreign": encode_chunk(replace(make_chunk(SPEC), spec_fingerprint=bytes(32))),
    "garbage": zstd.compress(b"not a chunk", level=1, checksum=True),
}
KINDS = ["good", "good", "good", *BODIES]
START, MAX_LAG = 30, 40
# Where there is one: no machine loses its power here, and each commit would wait for a disk.
RAM_DISK = Path("/dev/shm")


@dataclass
class Saved:
    """A checkpoint: what the weights know, and the cursor."""

    weights: Counter[ChunkKey]
    cursor: Cursor
    updates: int


class FleetUnderFaults(RuleBasedStateMachine):
    """Everything may be lost, repeated, late or killed; nothing may be counted twice or never."""

    def __init__(self) -> None:
        super().__init__()
        ram = RAM_DISK if os.access(RAM_DISK, os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="conservation-", dir=ram))
        self.devices = [SimDevice("pi-1"), SimDevice("pi-2")]
        self.network: list[Message] = []
        self.acks_under_way: list[tuple[str, bytes]] = []
        self.told: dict[RunKey, Ranges] = {}
        self.reports: dict[RunKey, RunReport] = {}
        self.updates = START
        self.weights: Counter[ChunkKey] = Counter()
        self.saved = Saved(Counter(), Cursor(0, Ranges()), START)
        self.disk_full = False

    @initialize()
    def start(self) -> None:
        self._open(self.saved)

    def teardown(self) -> None:
        self.journal.__exit__(None, None, None)
        shutil.rmtree(self.directory)

    # --------------------------------------------------------------------------- the devices

    @rule(device=st.integers(0, 1), kind=st.sampled_from(KINDS), count=st.integers(1, 4))
    def devices_act(self, device: int, kind: str, count: int) -> None:
        for _ in range(count):
            self.devices[device].produce(BODIES[kind])

    @rule(device=st.integers(0, 1), data=st.data())
    def a_full_spool_drops(self, device: int, data: st.DataObject) -> None:
        if held := self.devices[device].held():
            self.devices[device].drop(data.draw(st.sampled_from(held)))

    @rule(device=st.integers(0, 1), data=st.data())
    def a_chunk_expires_on_its_device(self, device: int, data: st.DataObject) -> None:
        if held := self.devices[device].held():
            self.devices[device].expire(data.draw(st.sampled_from(held)))

    @rule(device=st.integers(0, 1))
    def a_device_restarts(self, device: int) -> None:
        self.devices[device].restart()

    @rule(device=st.integers(0, 1), data=st.data(), copies=st.integers(0, 2))
    def a_chunk_is_sent_once_or_twice_or_lost(
        self, device: int, data: st.DataObject, copies: int
    ) -> None:
        if held := self.devices[device].held():
            key = data.draw(st.sampled_from(held))
            self.network += [self.devices[device].message(key)] * copies

    @rule(device=st.integers(0, 1))
    def everything_is_sent(self, device: int) -> None:
        self.network += [self.devices[device].message(key) for key in self.devices[device].held()]

    @rule(device=st.integers(0, 1))
    def a_device_reports(self, device: int) -> None:
        for ledger in self.devices[device].telemetry().ledger:
            run = RunKey(self.devices[device].device_id, ledger.run_id)
            self.reports[run] = RunReport.from_pb(ledger)

    # --------------------------------------------------------------------------- the learner

    @precondition(lambda self: self.network)
    @rule(data=st.data(), count=st.integers(1, 6))
    def messages_arrive_in_any_order(self, data: st.DataObject, count: int) -> None:
        self._take_in(
            [
                self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))
                for _ in range(min(count, len(self.network)))
            ]
        )

    @rule(device=st.integers(0, 1), count=st.integers(1, 6))
    def a_burst_arrives_at_once(self, device: int, count: int) -> None:
        keys = [self.devices[device].produce(BODIES["good"]) for _ in range(count)]
        self._take_in([self.devices[device].message(key) for key in keys])

    def _take_in(self, arriving: list[Message]) -> None:
        opened = open_chunks(arriving, self._standard(), self.journal.decided, max_bytes=1 << 20)
        assert not opened.refusals
        entries = [arrival.entry for arrival in opened.arrivals]
        if self.disk_full:
            self._fails_to_commit(entries)
            return
        positions = self.journal.append_many(entries)
        for arrival in opened.arrivals:
            self.acks.heard(arrival.run, oldest_seq=arrival.oldest_seq, now_s=0.0)
        runs = {arrival.run for arrival in opened.arrivals}
        self.acks_under_way += [
            (device_id, payload)
            for device_id, payloads in self.acks.messages(runs).items()
            for payload in payloads
        ]
        self.replay.add(
            Admitted(arrival.entry.key, position, arrival.chunk, arrival.version_updates)
            for arrival, position in zip(opened.arrivals, positions, strict=True)
            if position is not None
            and arrival.chunk is not None
            and arrival.entry.disposition is Disposition.TRAINED
        )

    @precondition(lambda self: self.acks_under_way)
    @rule(data=st.data(), lost=st.booleans())
    def an_ack_arrives_or_is_lost(self, data: st.DataObject, *, lost: bool) -> None:
        at = data.draw(st.integers(0, len(self.acks_under_way) - 1))
        device_id, payload = self.acks_under_way.pop(at)
        if not lost:
            next(d for d in self.devices if d.device_id == device_id).hear_ack(payload)

    @rule(batches=st.integers(1, 3))
    def the_learner_steps(self, batches: int) -> None:
        for _ in range(batches):
            draw = self.replay.take(Moment(self.updates, MAX_LAG))
            self.journal.redispose([item.position for item in draw.expired], Disposition.EXPIRED)
            self.weights.update(item.key for item in draw.taken)
            self.updates += 1 if draw.taken else 0

    @rule(updates=st.integers(1, 4))
    def training_moves_on(self, updates: int) -> None:
        self.updates += updates

    @rule()
    def a_checkpoint_is_saved(self) -> None:
        self.saved = Saved(Counter(self.weights), self.replay.cursor, self.updates)
        self.journal.prune(self.saved.cursor)

    @rule()
    def the_learner_is_killed_and_resumes(self) -> None:
        self.journal.__exit__(None, None, None)
        self.acks_under_way.clear()
        self._open(self.saved)

    @rule(full=st.booleans())
    def the_disk_fills_or_empties(self, *, full: bool) -> None:
        self.disk_full = full

    # --------------------------------------------------------------------------- what must hold

    @invariant()
    def the_audit_balances_with_any_report(self) -> None:
        for run, report in self.reports.items():
            audit = audit_run(report, self.journal.decided(run))
            assert audit.balanced, (run, report, audit)

    @invariant()
    def no_chunk_is_trained_twice(self) -> None:
        assert all(times == 1 for times in self.weights.values())

    @invariant()
    def trained_means_in_the_weights_or_on_the_way(self) -> None:
        expected = set(self.weights)
        expected |= self._waiting()
        assert self._with(Disposition.TRAINED) == expected

    @invariant()
    def no_acknowledged_chunk_is_lost(self) -> None:
        for device in self.devices:
            for run in device.runs:
                decided = self.journal.decided(RunKey(device.device_id, run.run_id))
                gone = Ranges.upto(run.produced).difference(Ranges.of(run.spooled))
                kept = gone.difference(run.dropped).difference(run.expired)
                assert not kept.difference(decided.settled)

    def _new_replay(self, cursor: Cursor) -> Source:
        return Replay(24, cursor, batch_steps=8)

    def _waiting(self) -> set[ChunkKey]:
        assert isinstance(self.replay, Replay)
        lines = chain(self.replay._evicted, *self.replay._lines.values())
        return {item.key for item in lines}

    def _with(self, disposition: Disposition) -> set[ChunkKey]:
        return {
            ChunkKey(run.device_id, run.run_id, seq)
            for run, decided in self.journal.runs().items()
            for seq in decided.of(disposition)
        }

    def _standard(self) -> Standard:
        versions = KnownVersions(lambda _: None, highest=0)
        versions.add(1, KnownVersion(0, DIGEST))
        versions.add(2, KnownVersion(START, DIGEST))
        return Standard(SPEC, versions, updates_now=self.updates, max_lag=MAX_LAG)

    def _open(self, saved: Saved) -> None:
        config = JournalConfig(retain_bytes=2000)
        self.journal = Journal(self.directory / "journal.db", config)
        self.acks = Acks(self.journal.decided)
        self.weights = Counter(saved.weights)
        self.updates = max(saved.updates, self.updates)
        self.replay = self._new_replay(saved.cursor)
        self.replay.add(reoffer(self.journal, saved.cursor, self._standard()).admitted)

    def _fails_to_commit(self, entries: list[Entry]) -> None:
        """The disk refuses: nothing is decided, so nothing is acknowledged."""
        before = self.journal.runs()
        self.journal._index._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError):
            self.journal.append_many(entries)
        self.journal._index._connection.execute("PRAGMA query_only = OFF")
        assert self.journal.runs() == before


FleetUnderFaults.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None
)
TestFleetUnderFaults = FleetUnderFaults.TestCase


class TransitionsUnderFaults(FleetUnderFaults):
    """The same for a store that chunks stay in: each counts once, when it goes in."""

    def _new_replay(self, cursor: Cursor) -> Source:
        return TransitionReplay(24, Sampling(learning_starts=0), seed=0, cursor=cursor)

    def _waiting(self) -> set[ChunkKey]:
        assert isinstance(self.replay, TransitionReplay)
        return {item.key for item in self.replay._pending}


TransitionsUnderFaults.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None
)
TestTransitionsUnderFaults = TransitionsUnderFaults.TestCase


def test_a_chunk_that_was_deleted_without_a_decision_unbalances_the_audit(tmp_path: Path) -> None:
    device = SimDevice("pi-1")
    keys = [device.produce(BODIES["good"]) for _ in range(3)]
    device.lose(keys[1])
    ledger: pb.RunLedger = device.telemetry().ledger[0]
    with Journal(tmp_path / "journal.db", JournalConfig()) as journal:
        audit = audit_run(RunReport.from_pb(ledger), journal.decided(RunKey("pi-1", b"")))
    assert not audit.balanced
    assert audit.missing == 1


def test_a_journal_that_forgot_a_chunk_it_acknowledged_unbalances_the_audit() -> None:
    device = SimDevice("pi-1")
    device.produce(BODIES["good"])
    key = device.held()[0]
    decided = {RunKey("pi-1", key.run_id): _trained(key.seq)}
    acks = Acks(lambda run: decided[run])
    for payloads in acks.messages(decided).values():
        for payload in payloads:
            device.hear_ack(payload)
    report = RunReport.from_pb(device.telemetry().ledger[0])
    assert audit_run(report, decided[RunKey("pi-1", key.run_id)]).balanced
    assert not audit_run(report, _trained(99)).balanced


def _trained(seq: int) -> Decided:
    return Decided(trained=Ranges.of([seq]))
