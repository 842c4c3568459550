"""A synchronous learner waits for who is there, and never without a word."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from sim import SimDevice, on_loop, until
from strategies import cartpole_spec, make_chunk

from cloud_learner.fleet.fleet import STALE_AFTER_S, Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided
from cloud_learner.training.experience import Admitted
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.roster import PresentRoster
from cloud_learner.training.source import Moment
from cloud_learner.training.stats import TrainingStats
from cloud_learner.training.sync_watch import waits, watch_sync
from cloud_learner.uplink.arrivals import Birth, open_reports
from shoal.envelope import ChunkKey
from shoal.v1 import device_pb2 as pb

SPEC = cartpole_spec()


@dataclass
class World:
    """A synchronous replay over a fleet whose devices come and go."""

    now_s: float = 0.0
    version: int = 1
    position: int = 0

    def __post_init__(self) -> None:
        facts = LearnerFacts(
            decided=lambda _: Decided(),
            updates=lambda: 0,
            updates_of=lambda _: None,
            replay_steps=lambda: 0,
            counters=Counter(),
        )
        self.fleet = Fleet(facts, TrainingStats(), clock=lambda: self.now_s)
        self.fleet.set_spec(SPEC)
        roster = PresentRoster(self.fleet.present)
        self.replay = Lockstep(roster, chunks=1, version=lambda: self.version)

    def join(self, name: str) -> SimDevice:
        device = SimDevice(name)
        self._say(device, pb.DEVICE_STATE_ONLINE)
        return device

    def lose(self, device: SimDevice) -> None:
        self._say(device, pb.DEVICE_STATE_OFFLINE_LOST)

    def report(self, *devices: SimDevice) -> None:
        for device in devices:
            for report in open_reports([device.telemetry_message()]).telemetries:
                self.fleet.note_telemetry(report)

    def make(self, device: SimDevice) -> None:
        self.position += 1
        chunk = replace(make_chunk(SPEC), policy_version=self.version)
        key = ChunkKey(device.device_id, device.run.run_id, self.position)
        self.replay.add([Admitted(key, self.position, chunk, 0)])

    def _say(self, device: SimDevice, state: pb.DeviceState) -> None:
        status = pb.Status(device_id=device.device_id, run_id=device.run.run_id, state=state)
        self.fleet.note_status(Birth(status, SPEC))


def test_a_batch_is_what_all_present_devices_made_under_the_newest_version() -> None:
    world = World()
    one, two = world.join("pi-1"), world.join("pi-2")
    world.make(one)
    assert not world.replay.ready()
    world.make(two)
    draw = world.replay.take(Moment(0))
    assert {item.key.device_id for item in draw.taken} == {"pi-1", "pi-2"}
    world.version = 2
    three = world.join("pi-3")
    for device in (one, two):
        world.make(device)
    assert not world.replay.ready()
    world.make(three)
    assert world.replay.ready()


@on_loop
async def test_a_learner_that_waits_goes_on_when_the_device_it_waits_for_dies() -> None:
    world = World()
    one, two = world.join("pi-1"), world.join("pi-2")
    world.make(one)
    watching = asyncio.ensure_future(watch_sync(world.replay, world.fleet, look_s=0.001))
    waiting = asyncio.ensure_future(world.replay.wait_ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    world.lose(two)
    await waiting
    watching.cancel()


@on_loop
async def test_a_device_that_falls_silent_is_waited_for_until_it_counts_as_stale() -> None:
    world = World()
    one, _two = world.join("pi-1"), world.join("pi-2")
    world.make(one)
    watching = asyncio.ensure_future(watch_sync(world.replay, world.fleet, look_s=0.001))
    waiting = asyncio.ensure_future(world.replay.wait_ready())
    world.now_s += STALE_AFTER_S - 1
    world.report(one)
    assert not world.replay.ready()
    world.now_s += 2
    await waiting
    watching.cancel()


@on_loop
async def test_it_says_for_whom_it_waits_and_takes_it_back() -> None:
    world = World()
    one, _two = world.join("pi-1"), world.join("pi-2")
    world.make(one)
    watching = asyncio.ensure_future(
        watch_sync(world.replay, world.fleet, look_s=0.001, after_s=5.0, clock=lambda: world.now_s)
    )
    await asyncio.sleep(0.01)
    world.now_s += 6
    await until(lambda: world.fleet.learner_state == "sync_waits")
    world.make(_two)
    await until(lambda: world.fleet.learner_state == "training")
    watching.cancel()


def test_the_message_names_devices_version_and_what_to_do() -> None:
    said = waits([f"pi-{n}" for n in range(12)], 7, waited_s=31.0)
    assert "pi-0, pi-1" in said
    assert "and 4 more" in said
    assert "version 7" in said
    assert "async" in said
