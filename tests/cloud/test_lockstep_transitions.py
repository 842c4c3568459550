"""Lockstep of transitions: whatever order chunks arrive in, every version is the same."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strategies import cartpole_spec, make_chunk

from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.training.experience import Admitted, Fresh
from cloud_learner.training.learner import Learner
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.lockstep_transitions import LockstepTransitions
from cloud_learner.training.roster import FixedRoster
from cloud_learner.training.source import Moment
from cloud_learner.training.sources import make_source, transitions_of, turns_of
from cloud_learner.training.transition_replay import Sampling, TransitionReplay
from shoal.envelope import ChunkKey
from shoal.errors import ConfigError
from shoal.ranges import Ranges
from shoal.spaces import Box, EnvSpec

CARTPOLE = cartpole_spec()
BOX = Box(np.full(1, -2.0, np.float32), np.full(1, 2.0, np.float32))
PENDULUM = EnvSpec("Pendulum-v1", CARTPOLE.observation, BOX)
DEVICES, CHUNKS, VERSIONS = 3, 2, 5
COMMON = {"batch_size": 8, "learning_starts": 60, "updates_per_transition": 0.2}
SAMPLING = Sampling(batch_size=4, learning_starts=16, updates_per_transition=0.25)


def admitted(
    position: int, device: int, seq: int, version: int, *, spec: EnvSpec = CARTPOLE
) -> Admitted:
    """What a device made under a version depends on device, number and version alone."""
    seed = 10_000 * device + 100 * seq + version
    chunk = replace(make_chunk(spec, seed=seed), policy_version=version)
    key = ChunkKey(f"pi-{device}", bytes([device]).rjust(16, b"\0"), seq)
    return Admitted(key, position, chunk, 0)


class Run:
    """A replay whose version the test publishes."""

    def __init__(self, devices: int, chunks: int, sampling: Sampling) -> None:
        self.version = 1
        turns = Lockstep(FixedRoster(devices), chunks=chunks, version=lambda: self.version)
        transitions = TransitionReplay(200, sampling, seed=0)
        self.replay = LockstepTransitions(turns, transitions, version=lambda: self.version)


def weights_of_a_run(
    path: str, spec: EnvSpec, order: random.Random, more: dict[str, object]
) -> list[bytes]:
    """Trains; chunks of a version arrive in any order. The weights of every version."""
    choice = load_algorithm(path, {**COMMON, **more})
    network = NetworkConfig(hidden=(8,), normalize=True)
    learner = Learner(choice.build(Setup(spec, network, 3)), name=choice.path)
    run, position = Run(DEVICES, CHUNKS, Sampling.of(choice.settings)), 0
    found: list[bytes] = []
    for run.version in range(1, VERSIONS + 1):
        wanted = [
            (device, (run.version - 1) * CHUNKS + seq)
            for device in range(DEVICES)
            for seq in range(CHUNKS)
        ]
        order.shuffle(wanted)
        for device, seq in wanted:
            position += 1
            run.replay.add([admitted(position, device, seq, run.version, spec=spec)])
        while run.replay.ready():
            run.replay.step(learner, run.replay.take(Moment(learner.updates)))
        weights = [p.detach().numpy().tobytes() for p in learner.policy.parameters()]
        found.append(b"".join(weights))
    assert learner.updates > 20
    return found


@pytest.mark.parametrize(
    ("path", "spec", "more"),
    [
        ("cloud_learner.algorithms.sac:SAC", PENDULUM, {}),
        ("cloud_learner.algorithms.sac:SAC", PENDULUM, {"n_step": 3, "priority_alpha": 0.6}),
        ("cloud_learner.algorithms.dqn:DQN", CARTPOLE, {"priority_alpha": 0.6}),
    ],
)
def test_two_runs_give_the_same_weights_for_every_version(
    path: str, spec: EnvSpec, more: dict[str, object]
) -> None:
    first, second = (weights_of_a_run(path, spec, random.Random(seed), more) for seed in (1, 2))
    assert first == second
    assert len(set(first)) > VERSIONS // 2


class Noted:
    """An algorithm that learns nothing and notes what was shown to it."""

    def __init__(self) -> None:
        import torch

        self.policy = torch.nn.Linear(1, 1)
        self.updates = 0
        self.fresh: list[Fresh] = []

    def observe(self, fresh: Fresh) -> None:
        self.fresh.append(fresh)

    def learn(self, batch: object) -> dict[str, float]:
        self.updates += 1
        return {}


def noted() -> tuple[Noted, Learner]:
    algorithm = Noted()
    return algorithm, Learner(algorithm, name="noted")  # type: ignore[arg-type]


def test_a_turn_goes_in_as_a_whole_and_every_update_it_pays_for_is_made_before_the_next() -> None:
    algorithm, learner = noted()
    run = Run(2, 1, SAMPLING)
    steps = make_chunk(CARTPOLE).transitions
    run.replay.add([admitted(1, 1, 0, 1)])
    assert not run.replay.ready()
    for run.version in (1, 2, 3, 4):
        run.replay.add(
            [admitted(10 * run.version + d, d, run.version, run.version) for d in (0, 1)]
        )
        while run.replay.ready():
            run.replay.step(learner, run.replay.take(Moment(learner.updates)))
        inserted = 2 * steps * run.version
        assert len(algorithm.fresh) == 2 * run.version
        assert learner.updates == (inserted - SAMPLING.learning_starts) // 4


def test_no_second_turn_under_one_version_is_taken_however_many_chunks_come() -> None:
    _, learner = noted()
    run = Run(1, 1, SAMPLING)
    run.replay.add([admitted(1, 0, 0, 1)])
    run.replay.step(learner, run.replay.take(Moment(0)))
    run.replay.add([admitted(2, 0, 1, 1)])
    assert not run.replay.ready()
    run.version = 2
    run.replay.add([admitted(3, 0, 2, 2)])
    draw = run.replay.take(Moment(0))
    assert [item.position for item in draw.taken] == [3]
    assert [item.position for item in draw.expired] == [2]
    assert run.replay.cursor.position == 3
    assert run.replay.cursor.waiting == Ranges()


def test_the_order_in_the_ring_is_that_of_the_keys() -> None:
    _, learner = noted()
    run = Run(2, 2, SAMPLING)
    run.replay.add([admitted(p, *of, 1) for p, of in enumerate([(1, 1), (0, 1), (1, 0), (0, 0)])])
    draw = run.replay.take(Moment(0))
    assert [item.key for item in draw.taken] == sorted(item.key for item in draw.taken)
    run.replay.step(learner, draw)
    assert TransitionReplay.held(run.replay.state_dict()) == {0, 1, 2, 3}


def test_a_waiting_learner_wakes_when_the_last_chunk_of_a_turn_comes() -> None:
    async def scenario() -> None:
        run = Run(1, 2, SAMPLING)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(run.replay.wait_ready())
            run.replay.add([admitted(1, 0, 0, 1)])
            await asyncio.sleep(0)
            assert not waiting.done()
            run.replay.add([admitted(2, 0, 1, 1)])

    asyncio.run(scenario())


def test_it_is_chosen_by_mode_and_sync_is_refused() -> None:
    def source(mode: str) -> object:
        path = "cloud_learner.algorithms.sac:SAC"
        training = TrainingConfig(algorithm=path, mode=mode, lockstep_devices=4)  # type: ignore[arg-type]
        config = LearnerConfig("demo", Path(), Path(), training=training)
        made = make_source(config, load_algorithm(path, {}), version=lambda: 0, cursor=None)
        assert transitions_of(made) is not None
        assert (turns_of(made) is None) == (mode == "async")
        return made

    assert isinstance(source("lockstep"), LockstepTransitions)
    assert isinstance(source("async"), TransitionReplay)
    with pytest.raises(ConfigError, match=r"training\.mode = 'sync'"):
        source("sync")
