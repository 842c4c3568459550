"""Who is well, who is present and who is gone, as the fleet view tells it."""

from __future__ import annotations

import pytest
from fleet_world import EXPECTED, LOST, NEW, OLD, ONLINE, SPEC, World, report, status
from hypothesis import given
from hypothesis import strategies as st
from sim import SimDevice, on_loop

from cloud_learner.fleet.device_record import DeviceRecord
from cloud_learner.fleet.fleet import STALE_AFTER_S
from cloud_learner.uplink.arrivals import Birth, Report
from shoal.spaces import Discrete, EnvSpec
from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2


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


def test_a_process_that_outlives_a_second_one_of_its_name_is_alive() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, OLD), 0.0)
    record.note_status(status(ONLINE, NEW), 1.0)
    for now_s in (2.0, 3.0):
        record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=OLD, uptime_s=now_s), now_s)
    record.note_status(status(LOST, NEW), 4.0)
    assert health(record, 4.0) == fleet_pb2.HEALTH_OFFLINE_LOST
    assert record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=OLD, uptime_s=5.0), 5.0)
    assert health(record, 5.0) == fleet_pb2.HEALTH_DEGRADED  # two processes used its name


def test_a_late_report_of_a_run_that_was_replaced_does_not_wake_a_lost_device() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, OLD), 0.0)
    record.note_status(status(ONLINE, NEW), 1.0)
    record.note_status(status(LOST, NEW), 2.0)
    record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=OLD, uptime_s=3.0), 3.0)
    assert health(record, 3.0) == fleet_pb2.HEALTH_OFFLINE_LOST


def test_after_a_restart_of_the_learner_a_process_that_outlives_its_twin_is_alive() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE, NEW), 0.0)  # the one birth that the broker kept
    record.note_status(status(LOST, NEW), 1.0)
    record.note_telemetry(pb.Telemetry(device_id="pi-1", run_id=OLD, uptime_s=9.0), 2.0)
    assert health(record, 2.0) == fleet_pb2.HEALTH_ONLINE


def test_a_silent_device_becomes_stale_by_the_servers_clock_and_says_for_how_long() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    found = record.health(STALE_AFTER_S + 1.0, stale_after_s=STALE_AFTER_S)
    assert found.state == fleet_pb2.HEALTH_STALE
    assert found.reasons == ("silent for 16 s",)


def test_a_device_whose_disk_refuses_chunks_is_degraded_until_it_takes_them_again() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    fault = pb.Event(run_id=NEW, event_seq=1, severity=pb.SEVERITY_ERROR, name="spool_fault")
    fault.message = "the disk is full"
    record.note_event(fault, 1.0)
    for now_s in (2.0, 1000.0):
        record.note_telemetry(pb.Telemetry(run_id=NEW, uptime_s=now_s), now_s)
        found = record.health(now_s, stale_after_s=STALE_AFTER_S)
        assert found.state == fleet_pb2.HEALTH_DEGRADED
        assert found.reasons == ("the disk is full",)
    over = pb.Event(run_id=NEW, event_seq=2, severity=pb.SEVERITY_INFO, name="spool_recovered")
    record.note_event(over, 1001.0)
    assert health(record, 1001.0) == fleet_pb2.HEALTH_ONLINE


def test_a_recent_error_makes_a_device_degraded_for_a_while() -> None:
    record = DeviceRecord("pi-1")
    record.note_status(status(ONLINE), 0.0)
    event = pb.Event(device_id="pi-1", name="spool_full", severity=pb.SEVERITY_ERROR)
    record.note_event(event, 1.0)
    assert record.health(2.0, stale_after_s=1e9).reasons == ("spool_full",)
    assert health(record, 2.0) == fleet_pb2.HEALTH_DEGRADED
    assert record.health(62.0, stale_after_s=1e9).state == fleet_pb2.HEALTH_ONLINE


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


def used_twice(world: World) -> int:
    described = world.fleet.describe("pi-1")
    assert described is not None
    return [known.event.name for known in described.events].count("name_used_twice")


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


def pace(
    uptime_s: float, misses: int, steps: int, *, run_id: bytes = NEW, hz: float = 45.0
) -> Report:
    telemetry = pb.Telemetry(
        device_id="pi-1",
        run_id=run_id,
        uptime_s=uptime_s,
        deadline_misses=misses,
        env_steps=steps,
        control_hz_achieved=hz,
    )
    return Report(telemetry, {})


@on_loop
async def test_a_device_that_misses_its_control_rate_is_degraded_until_it_keeps_it() -> None:
    world = World()
    world.fleet.note_status(Birth(status(ONLINE), SPEC))
    seen = []
    for second, misses in enumerate([0] * 11 + [*range(5, 60, 5)] + [60] * 21):
        world.fleet.note_telemetry(pace(second, misses, second * 50))
        world.now_s += 1.0
        seen.append(tuple(world.device().reasons))
    assert seen[15] == (), "one stall is no trouble"
    assert seen[25] == (
        "misses 10% of its control deadlines, at 45.0 steps/s: lower actor.control_hz",
    )
    assert seen[-1] == ()
    assert world.device().health == fleet_pb2.HEALTH_ONLINE


@on_loop
async def test_a_device_without_a_rate_and_one_that_started_anew_miss_nothing() -> None:
    world = World()
    world.fleet.note_status(Birth(status(ONLINE), SPEC))
    for second in range(30):
        world.fleet.note_telemetry(pace(second, second * 50, second * 50, hz=0.0))
        world.now_s += 1.0
    assert world.device().reasons == []
    for second in range(30):
        world.fleet.note_telemetry(pace(second, 0, second * 50, run_id=OLD))
        world.now_s += 1.0
    assert world.device().reasons == []
