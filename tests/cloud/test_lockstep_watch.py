"""A learner in lockstep never waits without a word."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from sim import on_loop, until
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided
from cloud_learner.training.experience import Admitted
from cloud_learner.training.lockstep import Lockstep, Turn
from cloud_learner.training.lockstep_watch import crowded, waits, watch_lockstep
from cloud_learner.training.roster import FixedRoster
from cloud_learner.training.source import Moment
from cloud_learner.training.stats import Progress, TrainingStats
from cloud_learner.uplink.arrivals import Birth
from shoal.envelope import ChunkKey
from shoal.v1 import device_pb2 as pb

TURN = Turn(7, devices=2, chunks=3, made={"pi-0": 3, "pi-1": 1}, lengths={}, learning=False)
ONLINE = {"pi-0": "online", "pi-1": "online"}


def test_it_names_the_device_that_is_missing_and_how_it_is() -> None:
    said = waits(TURN, ONLINE | {"pi-1": "offline_lost: silent"}, waited_s=20.0)
    assert said is not None
    assert "for 20 s: 1 of 2 devices" in said
    assert "policy version 7" in said
    assert "pi-1 (1 of 3, offline_lost: silent)" in said
    assert "pi-0" not in said


def test_it_says_how_many_devices_nobody_has_heard_of() -> None:
    said = waits(replace(TURN, devices=4), ONLINE, waited_s=20.0)
    assert said is not None
    assert "2 that the fleet has not heard of" in said


def test_a_device_that_never_sent_a_chunk_is_named_too() -> None:
    said = waits(replace(TURN, made={"pi-0": 3}), ONLINE, waited_s=20.0)
    assert said is not None
    assert "pi-1 (0 of 3, online)" in said


def test_chunks_of_different_lengths_are_named() -> None:
    odd = replace(TURN, made={"pi-0": 3, "pi-1": 0}, lengths={"pi-0": 32, "pi-1": 64})
    said = waits(odd, ONLINE, waited_s=20.0)
    assert said is not None
    assert "pi-0 32, pi-1 64 steps" in said
    assert "actor.chunk_steps" in said


@pytest.mark.parametrize(
    "turn", [replace(TURN, made={"pi-0": 3, "pi-1": 3}), replace(TURN, learning=True)]
)
def test_nobody_is_missing_in_a_batch_that_is_whole_or_trained_from(turn: Turn) -> None:
    assert waits(turn, ONLINE, waited_s=1000.0) is None


def test_more_devices_than_take_part_are_named_with_what_to_set() -> None:
    assert crowded(TURN) is None
    said = crowded(replace(TURN, devices=1))
    assert said is not None
    assert "pi-0, pi-1" in said
    assert "set it to 2" in said
    many = crowded(replace(TURN, made={f"pi-{n:02}": 0 for n in range(50)}))
    assert many is not None
    assert "and 42 more" in many


def fleet_of(*devices: str) -> Fleet:
    facts = LearnerFacts(
        decided=lambda _: Decided(),
        updates=lambda: 0,
        updates_of=lambda _: None,
        replay_steps=lambda: 0,
        counters=Counter(),
    )
    fleet = Fleet(facts, TrainingStats(Progress(0, 0, 0)))
    for device_id in devices:
        status = pb.Status(device_id=device_id, run_id=RUN_ID, state=pb.DEVICE_STATE_ONLINE)
        fleet.note_status(Birth(status, cartpole_spec()))
    return fleet


def chunk_of(device_id: str, position: int, version: int) -> Admitted:
    chunk = replace(make_chunk(cartpole_spec()), policy_version=version)
    return Admitted(ChunkKey(device_id, RUN_ID, position), position, chunk, 0)


@on_loop
async def test_the_conditions_come_and_go_with_their_causes() -> None:
    version, now_s = 1, 0.0
    fleet = fleet_of("pi-0", "pi-1")
    lockstep = Lockstep(FixedRoster(2), chunks=1, version=lambda: version)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(
            watch_lockstep(lockstep, fleet, after_s=0.01, clock=lambda: now_s)
        )
        lockstep.add([chunk_of("pi-0", 1, 1)])
        await asyncio.sleep(0.05)
        assert fleet.learner_state == "waiting_for_device"  # it is not late yet
        now_s = 1.0
        await until(lambda: fleet.learner_state == "lockstep_waits")
        lockstep.add([chunk_of("pi-1", 2, 1)])
        await until(lambda: fleet.learner_state == "waiting_for_device")
        lockstep.add([chunk_of("pi-2", 3, 1)])
        await until(lambda: fleet.learner_state == "lockstep_crowded")
        for version in (2, 3):
            lockstep.take(Moment(0))
            lockstep.add(chunk_of(f"pi-{n}", 10 * version + n, version) for n in range(2))
        await until(lambda: fleet.learner_state == "waiting_for_device")
        watching.cancel()
