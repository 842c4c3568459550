from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim import SimDevice, on_loop
from strategies import cartpole_spec

from cloud_learner.fleet.device_record import DeviceRecord
from cloud_learner.fleet.fleet import STALE_AFTER_S, Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided, Disposition, RunKey
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.arrivals import Birth, Report, open_reports
from shoal.ranges import Ranges
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2

SPEC = cartpole_spec()
OLD, NEW = b"old-run".ljust(16), b"new-run".ljust(16)
ONLINE, EXPECTED, LOST = (
    pb.DEVICE_STATE_ONLINE,
    pb.DEVICE_STATE_OFFLINE_EXPECTED,
    pb.DEVICE_STATE_OFFLINE_LOST,
)


@dataclass
class World:
    """A fleet view over a clock and a journal that the test moves."""

    now_s: float = 100.0
    decided: dict[RunKey, Decided] = field(default_factory=dict)
    updates: int = 0

    def __post_init__(self) -> None:
        facts = LearnerFacts(
            decided=lambda run: self.decided.get(run, Decided()),
            updates=lambda: self.updates,
            updates_of={1: 10}.get,
            replay_steps=lambda: 7,
            counters=Counter(duplicates=3),
            note_version=lambda version: "too high" if version > 9 else "",
        )
        self.fleet = Fleet(facts, TrainingStats(clock=self.clock), clock=self.clock)

    def clock(self) -> float:
        return self.now_s

    def hear(self, device: SimDevice) -> None:
        for report in open_reports([device.telemetry_message()]).telemetries:
            self.fleet.note_telemetry(report)

    def device(self, device_id: str = "pi-1") -> fleet_pb2.Device:
        return next(each for each in self.fleet.devices() if each.device_id == device_id)


def status(state: pb.DeviceState, run_id: bytes = NEW, reason: str = "") -> pb.Status:
    return pb.Status(device_id="pi-1", run_id=run_id, state=state, reason=reason)


def health(record: DeviceRecord, now_s: float = 0.0) -> fleet_pb2.Health:
    return record.health(now_s, stale_after_s=STALE_AFTER_S).state


def test_a_late_will_of_an_earlier_run_does_not_end_a_newer_one() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, OLD), 0.0)
    record.note_status(status(ONLINE, NEW), 1.0)
    assert not record.note_status(status(LOST, OLD), 2.0)
    assert health(record, 2.0) == fleet_pb2.HEALTH_ONLINE


def test_a_birth_that_is_delivered_again_does_not_bring_an_ended_run_back() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, OLD), 0.0)
    record.note_status(status(ONLINE, NEW), 1.0)
    assert not record.note_status(status(ONLINE, OLD), 2.0)
    assert record.status is not None
    assert record.status.run_id == NEW


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (EXPECTED, fleet_pb2.HEALTH_OFFLINE_EXPECTED),
        (LOST, fleet_pb2.HEALTH_OFFLINE_LOST),
    ],
)
def test_a_death_is_told_apart_by_whether_it_was_expected(
    state: pb.DeviceState, expected: fleet_pb2.Health
) -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    record.note_status(status(state, reason="why"), 1.0)
    found = record.health(1.0, stale_after_s=STALE_AFTER_S)
    assert (found.state, found.reasons) == (expected, ("why",))


def test_a_device_that_reports_after_its_will_fired_is_alive() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    record.note_status(status(LOST), 1.0)
    record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=NEW, uptime_s=2.0), 2.0)
    assert health(record, 2.0) == fleet_pb2.HEALTH_ONLINE


def test_a_silent_device_becomes_stale_by_the_servers_clock_and_says_for_how_long() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    found = record.health(STALE_AFTER_S + 1.0, stale_after_s=STALE_AFTER_S)
    assert found.state == fleet_pb2.HEALTH_STALE
    assert found.reasons == ("silent for 16 s",)


def test_a_recent_error_makes_a_device_degraded_for_a_while() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    event = pb.Event(device_id="pi-1", name="spool_full", severity=pb.SEVERITY_ERROR)
    record.note_event(event, 1.0)
    assert record.health(2.0, stale_after_s=1e9).reasons == ("spool_full",)
    assert health(record, 2.0) == fleet_pb2.HEALTH_DEGRADED
    assert record.health(62.0, stale_after_s=1e9).state == fleet_pb2.HEALTH_ONLINE


def test_an_event_that_is_delivered_twice_is_kept_once_and_all_are_bounded() -> None:
    record = DeviceRecord("pi-1")
    for seq in [*range(200), 199]:
        record.note_event(pb.Event(run_id=NEW, event_seq=seq), 0.0)
    assert len(record.events) == 100
    assert record.events[-1].event.event_seq == 199


def test_an_older_report_does_not_replace_a_newer_one() -> None:
    record = DeviceRecord("pi-1")
    record.note_telemetry(pb.Telemetry(run_id=NEW, uptime_s=5.0, env_steps=50), 0.0)
    assert not record.note_telemetry(pb.Telemetry(run_id=NEW, uptime_s=4.0, env_steps=40), 1.0)
    assert record.telemetry is not None
    assert record.telemetry.env_steps == 50


@on_loop
async def test_the_first_birth_tells_what_is_trained_and_others_must_agree() -> None:
    world = World()
    world.fleet.note_status(Birth(status(ONLINE), SPEC))
    async with asyncio.timeout(5):
        spec = await world.fleet.next_birth()
    assert spec.fingerprint == SPEC.fingerprint
    world.fleet.set_spec(spec)
    other = EnvSpec("Other", Box(np.zeros(2, np.float32), np.ones(2, np.float32)), Discrete(2))
    world.fleet.note_status(Birth(status(ONLINE, OLD), other))
    assert world.device().reasons[0].startswith("pi-1 acts in 'Other'")
    assert world.device().health == fleet_pb2.HEALTH_DEGRADED


@on_loop
async def test_the_audit_follows_reports_and_decisions_and_can_fail() -> None:
    world, device = World(), SimDevice("pi-1")
    keys = [device.produce(b"body") for _ in range(4)]
    run = RunKey("pi-1", keys[0].run_id)
    device.drop(keys[3])
    world.hear(device)
    world.decided[run] = Decided(trained=Ranges.of([0]), rejected=Ranges.of([1]))
    total = world.fleet.audit().total
    assert (total.produced, total.trained, total.rejected) == (4, 1, 1)
    assert (total.in_flight, total.dropped, total.balanced) == (1, 1, True)
    device.lose(keys[2])
    world.hear(device)
    assert not world.fleet.audit().total.balanced
    assert not world.fleet.training().audit.balanced
    assert not world.device().audit.balanced


@on_loop
async def test_a_late_report_does_not_undo_a_newer_one() -> None:
    world, device = World(), SimDevice("pi-1")
    device.produce(b"body")
    late = open_reports([device.telemetry_message()]).telemetries[0]
    device.produce(b"body")
    world.hear(device)
    world.fleet.note_telemetry(late)
    assert world.fleet.audit().total.produced == 2


@on_loop
async def test_reports_wait_to_be_saved_until_they_are() -> None:
    world, device = World(), SimDevice("pi-1")
    device.produce(b"body")
    world.hear(device)
    unsaved = world.fleet.take_unsaved_reports()
    assert [report.produced for report in unsaved.values()] == [1]
    assert world.fleet.take_unsaved_reports() == {}
    world.fleet.put_unsaved(unsaved)
    assert world.fleet.take_unsaved_reports() == unsaved


@on_loop
async def test_what_an_operator_reads_has_ages_and_lag() -> None:
    world, device = World(updates=26), SimDevice("pi-1")
    world.hear(device)
    telemetry = device.telemetry()
    telemetry.active_version = 1
    world.fleet.note_telemetry(Report(telemetry, {}))
    world.now_s += 3.0
    seen = world.device()
    assert seen.telemetry_age_s == 3.0
    assert seen.status_age_s < 0.0
    assert seen.lag_updates == 16
    described = world.fleet.describe("pi-1")
    assert described is not None
    assert described.device == seen
    assert world.fleet.describe("nobody") is None


@on_loop
async def test_a_condition_is_told_once_and_shown_until_it_is_over() -> None:
    world = World()
    for _ in range(3):
        world.fleet.raise_condition("journal_full", "no space")
    assert world.fleet.learner_state == "journal_full"
    world.fleet.clear_condition("journal_full")
    world.fleet.clear_condition("journal_full")
    assert world.fleet.learner_state == "waiting_for_device"
    described = world.fleet.describe("learner")
    assert described is not None
    names = [known.event.name for known in described.events]
    assert names == ["journal_full_cleared", "journal_full"]
    assert list(world.fleet.devices()) == []


@on_loop
async def test_training_shows_counters_replay_and_devices_online() -> None:
    world, device = World(), SimDevice("pi-1")
    world.hear(device)
    training = world.fleet.training()
    assert training.devices_online == 1
    assert training.replay_steps == 7
    assert training.counters["duplicates"] == 3


@given(st.lists(st.tuples(st.sampled_from([ONLINE, EXPECTED, LOST]), st.sampled_from([OLD, NEW]))))
def test_whatever_comes_late_or_twice_the_newest_run_is_shown(
    messages: list[tuple[pb.DeviceState, bytes]],
) -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, OLD), 0.0)
    record.note_status(status(ONLINE, NEW), 1.0)
    last = ONLINE
    for state, run_id in messages:
        record.note_status(status(state, run_id), 2.0)
        last = state if run_id == NEW else last
    assert record.status is not None
    assert (record.status.run_id, record.status.state) == (NEW, last)


@given(st.sampled_from(Disposition))
def test_every_disposition_has_its_own_column(disposition: Disposition) -> None:
    @on_loop
    async def scenario() -> None:
        world, device = World(), SimDevice("pi-1")
        key = device.produce(b"body")
        world.hear(device)
        run = RunKey("pi-1", key.run_id)
        world.decided[run] = Decided().with_chunks(Ranges.of([0]), disposition)
        total = world.fleet.audit().total
        assert getattr(total, disposition.value) == 1
        assert total.balanced

    scenario()


def event(name: str, severity: pb.Severity) -> pb.Event:
    return pb.Event(device_id="pi-1", name=name, severity=severity)


@on_loop
async def test_a_flood_of_good_news_pushes_no_error_out_and_both_are_shown_newest_first() -> None:
    world = World()
    world.fleet.note_event(event("spool_full", pb.SEVERITY_ERROR))
    for _ in range(300):
        world.now_s += 0.1
        world.fleet.note_event(event("policy_swapped", pb.SEVERITY_INFO))
    world.now_s += 0.1
    world.fleet.note_event(event("clock_behind", pb.SEVERITY_WARNING))
    world.fleet.note_chunk("pi-1")
    assert world.device().reasons == ["spool_full"]
    described = world.fleet.describe("pi-1")
    assert described is not None
    names = [known.event.name for known in described.events]
    assert (names[0], names[1], names[-1]) == ("clock_behind", "policy_swapped", "spool_full")


def used_twice(world: World) -> int:
    described = world.fleet.describe("pi-1")
    assert described is not None
    return [known.event.name for known in described.events].count("name_used_twice")


def report(run_id: bytes, uptime_s: float) -> Report:
    return Report(pb.Telemetry(device_id="pi-1", run_id=run_id, uptime_s=uptime_s), {})


@on_loop
async def test_a_name_that_two_processes_use_is_told_once_a_minute_and_degrades() -> None:
    world = World()
    world.fleet.note_status(Birth(status(ONLINE, OLD), None))
    world.fleet.note_status(Birth(status(ONLINE, NEW), None))
    world.fleet.note_telemetry(report(OLD, 1.0))
    assert used_twice(world) == 0  # one report may just have been late
    for second in range(2, 62):
        world.now_s += 1.0
        world.fleet.note_telemetry(report(OLD, float(second)))
        world.fleet.note_telemetry(report(NEW, float(second)))
    assert used_twice(world) == 1
    assert world.device().reasons == ["two processes use the name pi-1"]
    world.now_s += 1.0
    world.fleet.note_telemetry(report(OLD, 63.0))
    assert used_twice(world) == 2
    world.now_s += 61.0
    world.fleet.note_telemetry(report(NEW, 63.0))
    assert world.device().health == fleet_pb2.HEALTH_ONLINE


@on_loop
async def test_late_reports_of_a_run_that_ended_with_a_status_are_no_second_process() -> None:
    world = World()
    world.fleet.note_status(Birth(status(ONLINE, OLD), None))
    world.fleet.note_status(Birth(status(ONLINE, NEW), None))
    world.fleet.note_status(Birth(status(LOST, OLD), None))
    for second in range(5):
        world.fleet.note_telemetry(report(OLD, float(second)))
    assert used_twice(world) == 0
    assert world.device().health == fleet_pb2.HEALTH_ONLINE


@on_loop
async def test_a_device_whose_chunks_are_rejected_is_degraded_for_a_minute() -> None:
    world = World()
    for _ in range(3):
        world.fleet.note_chunk("pi-1")
        world.fleet.note_rejected("pi-1", "non_finite", 2)
    assert world.device().health == fleet_pb2.HEALTH_DEGRADED
    assert world.device().reasons == ["6 chunks rejected in the last minute: non_finite"]
    world.now_s += 61.0
    world.fleet.note_chunk("pi-1")
    assert world.device().health == fleet_pb2.HEALTH_ONLINE


@on_loop
async def test_a_device_that_holds_a_version_never_published_is_degraded_until_it_has_another() -> (
    None
):
    world = World()
    for version, reasons in ((10, ["too high"]), (9, [])):
        telemetry = pb.Telemetry(device_id="pi-1", run_id=NEW, active_version=version)
        world.fleet.note_telemetry(Report(telemetry, {}))
        assert world.device().reasons == reasons


def test_present_are_those_that_act_for_this_fleet_and_what_each_makes() -> None:
    world = World()
    world.fleet.set_spec(SPEC)
    foreign = EnvSpec("other", SPEC.observation, Discrete(9))
    for name, spec in (("pi-1", SPEC), ("pi-2", foreign), ("pi-3", SPEC), ("pi-4", SPEC)):
        device = SimDevice(name)
        world.fleet.note_status(Birth(_birth(device, ONLINE), spec))
        world.hear(device)
        if name == "pi-3":
            world.fleet.note_status(Birth(_birth(device, LOST), None))
    assert world.fleet.present() == {"pi-1": 0.0, "pi-4": 0.0}
    world.now_s += STALE_AFTER_S + 1
    assert world.fleet.present() == {}


def _birth(device: SimDevice, state: pb.DeviceState) -> pb.Status:
    return pb.Status(device_id=device.device_id, run_id=device.run.run_id, state=state)


@given(
    state=st.sampled_from([None, ONLINE, EXPECTED, LOST]),
    reported=st.booleans(),
    later_s=st.floats(0.0, 2 * STALE_AFTER_S),
    rejected=st.booleans(),
)
def test_a_device_is_alive_exactly_when_its_health_says_online_or_degraded(
    *, state: pb.DeviceState | None, reported: bool, later_s: float, rejected: bool
) -> None:
    record = DeviceRecord("pi-1")
    if state is not None:
        record.note_status(status(state), 0.0)
    if reported:
        record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=NEW), 1.0)
    if rejected:
        record.note_rejected("shape", 1, 1.0)
    alive = record.alive(later_s, stale_after_s=STALE_AFTER_S)
    assert alive == (
        health(record, later_s) in (fleet_pb2.HEALTH_ONLINE, fleet_pb2.HEALTH_DEGRADED)
    )


def test_a_run_is_gone_when_it_died_fell_silent_or_was_replaced_and_not_before() -> None:
    world = World()
    device = SimDevice("pi-1")
    first = device.run.run_id
    assert not world.fleet.is_gone("pi-1", first)  # nobody heard of it yet
    world.fleet.note_status(Birth(_birth(device, ONLINE), None))
    assert not world.fleet.is_gone("pi-1", first)
    world.fleet.note_status(Birth(_birth(device, LOST), None))
    assert world.fleet.is_gone("pi-1", first)
    device.restart()
    assert not world.fleet.is_gone("pi-1", device.run.run_id)  # it asks before its birth is heard
    world.fleet.note_status(Birth(_birth(device, ONLINE), None))
    assert world.fleet.is_gone("pi-1", first)
    assert not world.fleet.is_gone("pi-1", device.run.run_id)
    world.now_s += STALE_AFTER_S + 1
    assert world.fleet.is_gone("pi-1", device.run.run_id)


def test_what_a_device_makes_is_as_it_last_reported() -> None:
    world = World()
    assert world.fleet.steps_per_s("pi-1") == 0.0
    telemetry = pb.Telemetry(device_id="pi-1", run_id=NEW, steps_per_s=812.5)
    world.fleet.note_telemetry(Report(telemetry, {}))
    assert world.fleet.steps_per_s("pi-1") == 812.5
