"""The learner as a whole where it trains from transitions."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from learner_core import (
    CHUNKS,
    KEY,
    SPEC,
    birth,
    config_in,
    learning,
    take_in,
    until_newer,
    until_trained,
    weights,
)
from sim import on_loop, until
from strategies import RUN_ID

from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.core import Core, open_core
from cloud_learner.journal.audit import RunKey
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.arrivals import Birth

DQN = "cloud_learner.algorithms.dqn:DQN"


def dqn_in(directory: Path, **settings: object) -> LearnerConfig:
    config = config_in(directory)
    training = TrainingConfig(
        algorithm=DQN,
        network=NetworkConfig(hidden=(8,)),
        replay_steps=4096,
        settings={
            "batch_size": 8,
            "gradient_steps": 1,
            "learning_starts": 32,
            "updates_per_transition": 0.25,
            **settings,
        },
    )
    return replace(config, training=training)


async def until_idle(core: Core, seqs: range) -> None:
    """Until all of these are in replay, and all updates that they pay for are made."""
    replay = core.parts.replay
    chunks = len(seqs)
    await until(
        lambda: not replay.ready() and not core.trainer._midway and replay.steps == chunks * 8
    )


@on_loop
async def test_what_waits_for_a_warm_up_gets_versions_all_the_same(tmp_path: Path) -> None:
    async with learning(dqn_in(tmp_path, learning_starts=1000)) as core:
        first = core.parts.parameter_server.offered_version
        for seq in range(3):
            take_in(core, range(seq, seq + 1))
            await until_newer(core, first)
            first = core.parts.parameter_server.offered_version
        assert core.trainer.updates == 0
        await until(lambda: core.parts.stats.fill == 24 / 1000)


@on_loop
async def test_transitions_are_learned_from_at_their_ratio_and_counted_once(tmp_path: Path) -> None:
    async with learning(dqn_in(tmp_path)) as core:
        take_in(core, range(CHUNKS))
        await until_idle(core, range(CHUNKS))
        assert core.trainer.updates == (CHUNKS * 8 - 32) // 4
        decided = core.parts.journal.decided(RunKey("pi-1", RUN_ID))
        assert (decided.trained.count(), decided.expired.count()) == (CHUNKS, 0)


def test_replay_is_filled_again_after_a_stop_and_learning_goes_on_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    @on_loop
    async def scenario() -> None:
        ends = []
        for name, stops in (("whole", ()), ("stopped", (3, 7))):
            (tmp_path / name).mkdir()
            config, done = dqn_in(tmp_path / name), 0
            for stop in (*stops, CHUNKS):
                async with learning(config) as core:
                    for seq in range(done, stop):
                        take_in(core, range(seq, seq + 1))
                        await until_idle(core, range(seq + 1))
                    done = stop
            ends.append((weights(core), core.trainer.updates))
        np.testing.assert_array_equal(ends[0][0], ends[1][0])
        assert ends[0][1] == ends[1][1] > 0

    scenario()


@pytest.mark.parametrize("batches", [1, 5])
def test_after_a_kill_what_no_checkpoint_covers_goes_into_replay_once(
    tmp_path: Path, batches: int
) -> None:
    @on_loop
    async def scenario() -> None:
        config = replace(dqn_in(tmp_path), checkpoint_interval_s=1e9)
        async with learning(config, kill=True) as core:
            take_in(core, range(CHUNKS))
            await until_trained(core, batches)
        async with learning(config) as core:
            await until_idle(core, range(CHUNKS))
            decided = core.parts.journal.decided(RunKey("pi-1", RUN_ID))
            assert decided.trained.count() == CHUNKS
            assert core.parts.replay.steps == CHUNKS * 8

    scenario()


@on_loop
async def test_an_algorithm_that_cannot_act_in_a_devices_spaces_says_so_and_waits(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    training = replace(config.training, algorithm="cloud_learner.algorithms.sac:SAC", settings={})
    state = StateDir.open(tmp_path, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(
            replace(config, training=training), state, KEY, stack, rng=random.Random(0)
        )
        core.parts.fleet.note_status(Birth(birth(), SPEC))
        async with asyncio.TaskGroup() as group:
            group_task = group.create_task(core.trainer.serve(core.restored))
            await until(lambda: core.parts.fleet.learner_state == "cannot_train")
            group_task.cancel()
