"""Lockstep: whatever order chunks arrive in, every version is the same bit for bit."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk

from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.training.experience import Admitted
from cloud_learner.training.learner import Learner
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.publisher import sample_from
from cloud_learner.training.roster import FixedRoster
from cloud_learner.training.source import Moment
from cloud_learner.training.sources import make_source
from shoal.envelope import ChunkKey
from shoal.policy import policy_digest, sha256
from shoal.ranges import Ranges
from shoal.tensors import encode_tensors

SPEC = cartpole_spec()
DEVICES, CHUNKS, VERSIONS = 3, 2, 4


def admitted(position: int, device: int, seq: int, version: int) -> Admitted:
    """What a device made under a version depends on device, number and version alone."""
    seed = 10_000 * device + 100 * seq + version
    chunk = replace(make_chunk(SPEC, seed=seed), policy_version=version)
    key = ChunkKey(f"pi-{device}", bytes([device]).rjust(16, b"\0"), seq)
    return Admitted(key, position, chunk, 0)


def digests_of_a_run(order: random.Random) -> list[bytes]:
    """Trains; chunks of a version arrive in any order, stragglers of the last one among them."""
    choice = load_algorithm("cloud_learner.algorithms.appo:APPO", {"epochs": 2, "minibatches": 2})
    learner = Learner(choice.build(Setup(SPEC, NetworkConfig(hidden=(8,)), 3)), name=choice.path)
    quantizer = Quantizer(learner.policy)
    version, position = 1, 0
    replay = Lockstep(FixedRoster(DEVICES), chunks=CHUNKS, version=lambda: version)
    found: list[bytes] = []
    for version in range(1, VERSIONS + 1):
        wanted = [
            (device, (version - 1) * CHUNKS + seq, version)
            for device in range(DEVICES)
            for seq in range(CHUNKS)
        ]
        if version > 1:  # one that its device made for want of a newer version, and sent late
            wanted.append((0, 900 + version, version - 1))
        order.shuffle(wanted)
        for device, seq, made_under in wanted:
            position += 1
            replay.add([admitted(position, device, seq, made_under)])
        draw = replay.take(Moment(learner.updates))
        assert draw.work
        stepped = replay.step(learner, draw)
        quantized = quantizer.quantize(
            learner.policy, sample_from(learner.policy, stepped.experience)
        )
        graph = quantizer.graphs[quantized.precision]
        found.append(policy_digest(sha256(graph), sha256(encode_tensors(quantized.tensors))))
    return found


def test_two_runs_give_the_same_digest_for_every_version() -> None:
    first, second = (digests_of_a_run(random.Random(seed)) for seed in (1, 2))
    assert first == second
    assert len(set(first)) == VERSIONS


def test_a_batch_waits_for_every_device() -> None:
    replay = Lockstep(FixedRoster(2), chunks=2, version=lambda: 1)
    replay.add([admitted(1, 0, 0, 1), admitted(2, 0, 1, 1), admitted(3, 1, 0, 1)])
    assert not replay.ready()
    assert replay.fill == 0.75
    assert not replay.take(Moment(0)).work
    replay.add([admitted(4, 1, 1, 1)])
    assert replay.ready()
    draw = replay.take(Moment(0))
    assert [item.position for item in draw.taken] == [1, 2, 3, 4]
    assert not draw.expired


def test_what_is_of_no_use_any_more_leaves_as_expired_with_the_batch() -> None:
    replay = Lockstep(FixedRoster(1), chunks=1, version=lambda: 2)
    other = admitted(4, 0, 9, 2)
    longer = replace(other, chunk=replace(make_chunk(SPEC, steps=8), policy_version=2))
    replay.add([admitted(1, 0, 0, 1), admitted(2, 0, 2, 2), admitted(3, 0, 1, 2), longer])
    draw = replay.take(Moment(0))
    assert [item.position for item in draw.taken] == [3]
    assert [item.position for item in draw.expired] == [1, 2, 4]
    assert replay.cursor.position == 4
    assert replay.cursor.waiting == Ranges()


@given(st.permutations(list(range(DEVICES * CHUNKS))))
@settings(max_examples=20, deadline=None)
def test_the_order_of_a_batch_is_that_of_the_keys(order: list[int]) -> None:
    replay = Lockstep(FixedRoster(DEVICES), chunks=CHUNKS, version=lambda: 1)
    for position, place in enumerate(order, start=1):
        replay.add([admitted(position, place // CHUNKS, place % CHUNKS, 1)])
    taken = replay.take(Moment(0)).taken
    assert [item.key for item in taken] == sorted(item.key for item in taken)


def test_a_waiting_learner_wakes_when_the_last_chunk_comes() -> None:
    async def scenario() -> None:
        replay = Lockstep(FixedRoster(1), chunks=2, version=lambda: 1)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(replay.wait_ready())
            replay.add([admitted(1, 0, 0, 1)])
            await asyncio.sleep(0)
            assert not waiting.done()
            replay.add([admitted(2, 0, 1, 1)])

    asyncio.run(scenario())


def test_a_turn_says_who_has_made_what_and_whether_it_is_over() -> None:
    version = 1
    replay = Lockstep(FixedRoster(2), chunks=2, version=lambda: version)
    assert replay.turn().made == {}
    replay.add([admitted(1, 0, 0, 1), admitted(2, 0, 1, 1), admitted(3, 1, 0, 1)])
    turn = replay.turn()
    assert (turn.made, turn.learning) == ({"pi-0": 2, "pi-1": 1}, False)
    replay.add([admitted(4, 1, 1, 1)])
    replay.take(Moment(0))
    assert replay.turn().learning  # its version is not out yet
    version = 2
    turn = replay.turn()
    assert (turn.version, turn.made, turn.learning) == (2, {"pi-0": 0, "pi-1": 0}, False)


def test_a_device_that_left_two_versions_ago_takes_no_part_any_more() -> None:
    version = 1
    replay = Lockstep(FixedRoster(1), chunks=1, version=lambda: version)
    replay.add([admitted(1, 0, 0, 1), admitted(2, 1, 0, 1)])
    assert replay.turn().made == {"pi-0": 1, "pi-1": 1}
    for version in (2, 3):
        replay.take(Moment(0))
        replay.add([admitted(10 + version, 0, version, version)])
    assert replay.turn().made == {"pi-0": 1}


def test_it_is_chosen_by_mode() -> None:
    training = TrainingConfig(mode="lockstep", lockstep_devices=4)
    config = LearnerConfig("demo", Path(), Path(), training=training)
    choice = load_algorithm(training.algorithm, {})
    assert isinstance(make_source(config, choice, version=lambda: 0, cursor=None), Lockstep)


def test_the_same_chunks_in_another_order_are_another_batch_without_it() -> None:
    """What lockstep is for: first in, first out follows arrival."""
    items = [admitted(1, 1, 0, 1), admitted(2, 0, 0, 1)]
    replay = Lockstep(FixedRoster(2), chunks=1, version=lambda: 1)
    replay.add(items)
    taken = replay.take(Moment(0)).taken
    assert [item.position for item in taken] == [2, 1]
    assert not np.array_equal(items[0].chunk.observations, items[1].chunk.observations)
