"""A fleet view over a clock and a journal that the test moves."""

from __future__ import annotations

import asyncio

import numpy as np
from fleet_world import NEW, OLD, ONLINE, SPEC, World, status
from hypothesis import given
from hypothesis import strategies as st
from sim import SimDevice, on_loop

from cloud_learner.fleet.device_record import DeviceRecord
from cloud_learner.journal.audit import Decided, Disposition, RunKey
from cloud_learner.uplink.arrivals import Birth, Report, open_reports
from shoal.ranges import Ranges
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.v1 import device_pb2 as pb
from shoal.v1 import fleet_pb2


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
        assert world.fleet.training().learner_problem == "no space"
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
