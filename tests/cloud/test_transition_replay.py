"""Replay of transitions as the trainer sees it, and training that goes on bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.algorithms.interface import Choice, Setup, load_algorithm
from cloud_learner.config import JournalConfig, NetworkConfig
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.journal.reoffer import refill
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.training.checkpoint import Checkpoint, CheckpointStore
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Admitted, Fresh, Transitions
from cloud_learner.training.learner import Learner
from cloud_learner.training.source import Moment
from cloud_learner.training.transition_replay import Sampling, TransitionReplay
from cloud_learner.training.transition_ring import TransitionRing, slot_bytes
from shoal.envelope import ChunkKey
from shoal.errors import ConfigError
from shoal.ranges import Ranges
from shoal.spaces import Box, EnvSpec
from shoal.trajectory import encode_chunk

CARTPOLE = cartpole_spec()
BOX = Box(np.full(1, -2.0, np.float32), np.full(1, 2.0, np.float32))
PENDULUM = EnvSpec("Pendulum-v1", cartpole_spec().observation, BOX)
SAMPLING = Sampling(batch_size=4, learning_starts=16, updates_per_transition=0.25)


class Noted:
    """An algorithm that learns nothing and notes what it was given."""

    def __init__(self) -> None:
        self.policy = torch.nn.Linear(1, 1)
        self.updates = 0
        self.fresh: list[Fresh] = []
        self.batches: list[Transitions] = []
        self.errors: np.ndarray[Any, Any] | None = None

    def observe(self, fresh: Fresh) -> None:
        self.fresh.append(fresh)

    def learn(self, batch: Transitions) -> Mapping[str, float]:
        self.updates += 1
        self.batches.append(batch)
        self.errors = np.arange(batch.transitions, dtype=np.float32)
        return {}


def admitted(position: int, *, updates: int = 0, spec: EnvSpec = CARTPOLE) -> Admitted:
    chunk = make_chunk(spec, seed=position)
    return Admitted(ChunkKey("pi-1", RUN_ID, position), position, chunk, updates)


def noted() -> tuple[Noted, Learner]:
    algorithm = Noted()
    return algorithm, Learner(algorithm, name="noted")  # type: ignore[arg-type]


def test_chunks_are_stored_first_and_learned_from_once_there_are_enough() -> None:
    algorithm, learner = noted()
    replay = TransitionReplay(1000, SAMPLING, seed=0)
    replay.add([admitted(1), admitted(2)])
    assert replay.fill == 0.0
    stepped = replay.step(learner, replay.take(Moment(0)))
    assert isinstance(stepped.experience, Fresh)
    assert stepped.metrics is None
    assert not replay.ready()
    assert replay.fill == 0.0  # the warm-up is full, and nothing pays for an update yet
    replay.add([admitted(3)])
    while replay.ready():
        replay.step(learner, replay.take(Moment(learner.updates)))
    assert len(algorithm.batches) == 2  # 8 transitions beyond the warm-up, a quarter update each
    assert [batch.transitions for batch in algorithm.batches] == [4, 4]
    assert len(algorithm.fresh) == 3


def test_every_chunk_is_shown_to_the_algorithm_once_however_often_it_is_drawn() -> None:
    algorithm, learner = noted()
    sampling = replace(SAMPLING, updates_per_transition=4.0, learning_starts=0)
    replay = TransitionReplay(1000, sampling, seed=0)
    replay.add([admitted(1)])
    while replay.ready():
        replay.step(learner, replay.take(Moment(0)))
    assert len(algorithm.batches) == 32
    assert len(algorithm.fresh) == 1


def test_a_waiting_learner_wakes_when_a_chunk_comes() -> None:
    async def scenario() -> None:
        replay = TransitionReplay(1000, SAMPLING, seed=0)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(replay.wait_ready())
            await asyncio.sleep(0)
            assert not waiting.done()
            replay.add([admitted(1)])

    asyncio.run(scenario())


def test_lag_is_unbounded_unless_a_bound_is_given() -> None:
    replay = TransitionReplay(1000, SAMPLING, seed=0)
    replay.add([admitted(1, updates=0), admitted(2, updates=90)])
    draw = replay.take(Moment(100, max_lag=10))
    assert [item.position for item in draw.expired] == [1]
    replay.add([admitted(3, updates=0)])
    assert not replay.take(Moment(10**9)).expired


def test_the_cursor_tells_what_is_in_the_ring_from_what_waits() -> None:
    replay = TransitionReplay(1000, SAMPLING, seed=0)
    replay.add([admitted(1), admitted(2)])
    assert replay.cursor == Cursor(0, Ranges())
    replay.take(Moment(0))
    replay.add([admitted(3)])
    assert [n for n in range(1, 5) if replay.cursor.covers(n)] == [1, 2]


def test_priorities_follow_the_errors_of_the_last_step() -> None:
    _, learner = noted()
    sampling = replace(SAMPLING, priority_alpha=1.0, learning_starts=0)
    replay = TransitionReplay(1000, sampling, seed=0)
    replay.add([admitted(1)])
    replay.step(learner, replay.take(Moment(0)))
    assert len(set(replay._ring.state_dict()["priorities"].tolist())) > 2


def test_importance_weights_undo_ever_more_of_the_priorities_until_they_undo_all() -> None:
    algorithm, learner = noted()
    sampling = replace(
        SAMPLING,
        batch_size=64,
        learning_starts=0,
        updates_per_transition=2.0,
        priority_alpha=1.0,
        priority_beta=0.4,
        priority_anneal_updates=8,
    )
    replay = TransitionReplay(1000, sampling, seed=0)
    replay.add([admitted(1)])
    before: list[np.ndarray[Any, Any]] = []
    while replay.ready():
        assert replay._ring._tree is not None
        before.append(replay._ring._tree._nodes.copy())
        replay.step(learner, replay.take(Moment(learner.updates)))
    assert len(algorithm.batches) == 16
    for updates, (nodes, batch) in enumerate(zip(before, algorithm.batches, strict=True)):
        if updates == 0:
            continue  # what is drawn from was not there before the step
        priorities = nodes[batch.slots + len(nodes) // 2]
        beta = min(1.0, 0.4 + 0.6 * updates / 8)
        wanted = (priorities / priorities.min()) ** -beta  # Schaul et al. 2016, section 3.4
        np.testing.assert_allclose(batch.weights, wanted, rtol=1e-5)
        assert wanted.min() < 0.9


def test_lag_is_counted_in_updates_since_the_version_that_acted() -> None:
    algorithm, learner = noted()
    learner.resume_at(500)
    replay = TransitionReplay(1000, replace(SAMPLING, learning_starts=0), seed=0)
    replay.add([admitted(1, updates=400)])
    replay.step(learner, replay.take(Moment(500)))
    assert set(algorithm.batches[0].lags.tolist()) == {100}


def test_a_warm_up_that_replay_could_never_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_starts = 600 .*replay_steps \(1000\)"):
        TransitionReplay(1000, replace(SAMPLING, learning_starts=600), seed=0)


def test_a_ring_holds_what_fits_in_its_bytes_and_says_when_that_is_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    each = slot_bytes(CARTPOLE, prioritized=False)
    replay = TransitionReplay(1000, SAMPLING, seed=0, max_bytes=100 * each)
    replay.fit(CARTPOLE)
    assert "replay_bounded" in caplog.messages
    caplog.clear()
    _, learner = noted()
    for position in range(1, 40):
        replay.add([admitted(position)])
        replay.step(learner, replay.take(Moment(0)))
    assert 50 <= replay.steps <= 100
    enough = TransitionReplay(1000, SAMPLING, seed=0, max_bytes=1000 * each)
    enough.fit(CARTPOLE)
    assert not caplog.messages


def test_a_slot_is_as_large_as_what_the_ring_takes_for_it() -> None:
    ring = TransitionRing(64, seed=0, alpha=0.5)
    ring.insert(admitted(1))
    assert ring._tree is not None
    columns = (ring._kinds, ring._rewards, ring._updates, ring._stamps, ring._tree._nodes)
    taken = sum(column.nbytes for column in (*columns, ring._observations, ring._actions))
    assert taken <= 64 * slot_bytes(CARTPOLE, prioritized=True) <= 1.5 * taken


def test_bytes_that_could_never_hold_the_warm_up_are_refused_with_how_many_would() -> None:
    each = slot_bytes(CARTPOLE, prioritized=False)
    replay = TransitionReplay(1000, SAMPLING, seed=0, max_bytes=31 * each)
    with pytest.raises(ConfigError, match=rf"holds 31 .*set replay_bytes to {32 * each} or more"):
        replay.fit(CARTPOLE)


def test_settings_of_a_class_of_ones_own_shape_what_it_is_given() -> None:
    class Mine:
        n_step = 7
        gamma = 0.5
        other = "?"

    assert Sampling.of(Mine()) == Sampling(n_step=7, gamma=0.5)


# ------------------------------------------------------------------------------ an exact resume

COMMON = {"batch_size": 8, "learning_starts": 40, "updates_per_transition": 0.5}
CASES = {
    "sac": ("cloud_learner.algorithms.sac:SAC", PENDULUM, {}),
    "sac, all of it": (
        "cloud_learner.algorithms.sac:SAC",
        PENDULUM,
        {"n_step": 3, "priority_alpha": 0.6, "normalize_rewards": True, "gradient_steps": 2},
    ),
    "dqn": ("cloud_learner.algorithms.dqn:DQN", CARTPOLE, {"priority_alpha": 0.6}),
}


class Run:
    """A learner with its replay and journal, without its network and event loop."""

    def __init__(self, directory: Path, choice: Choice, spec: EnvSpec) -> None:
        self.spec, self.choice = spec, choice
        network = NetworkConfig(hidden=(8,), normalize=True)
        self.learner = Learner(choice.build(Setup(spec, network, 0)), name=choice.path)
        self.journal = Journal(directory / "journal.db", JournalConfig(retain_bytes=0))
        self.store = CheckpointStore(directory / "checkpoints")
        saved = self.store.newest()
        self.replay = TransitionReplay(
            200,
            Sampling.of(choice.settings),
            seed=0,
            cursor=saved.cursor if saved is not None else None,
        )
        if saved is not None:
            held = TransitionReplay.held(saved.source)
            self.replay.load_state_dict(saved.source, refill(self.journal, held))
            self.learner.load_state_dict(saved.learner)

    def take_in(self, seq: int) -> None:
        chunk = make_chunk(self.spec, seed=seq)
        key = ChunkKey("pi-1", RUN_ID, seq)
        entry = Entry(key, Disposition.TRAINED, encode_chunk(chunk), 1, chunk.transitions)
        (position,) = self.journal.append_many([entry])
        assert position is not None
        self.replay.add([Admitted(key, position, chunk, self.learner.updates)])

    def learn(self) -> None:
        while self.replay.ready():
            self.replay.step(self.learner, self.replay.take(Moment(self.learner.updates)))

    def save(self) -> None:
        """Saves, and has the journal forget all that is not needed again."""
        quantizer = Quantizer(self.learner.policy)
        self.store.save(
            Checkpoint(
                spec=self.spec,
                learner=self.learner.state_dict(),
                quantizer=quantizer.state_dict(),
                source=self.replay.state_dict(),
                cursor=self.replay.cursor,
                version=1,
            )
        )
        held = TransitionReplay.held(self.replay.state_dict())
        self.journal.prune(self.replay.cursor, held)
        assert {record.position for record in self.journal.newest_first()} == held

    def close(self) -> None:
        self.journal.__exit__(None, None, None)

    def weights(self) -> torch.Tensor:
        policy = self.learner.policy
        return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


@pytest.mark.parametrize("case", CASES)
def test_training_on_after_a_resume_equals_training_without_a_stop(
    tmp_path: Path, case: str
) -> None:
    path, spec, more = CASES[case]
    choice = load_algorithm(path, {**COMMON, **more})
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole, stopped = (Run(tmp_path / name, choice, spec) for name in ("whole", "stopped"))
    for seq in range(40):  # 320 transitions through a ring of 200 slots
        if seq in (3, 16, 31):
            stopped.save()
            stopped.close()
            stopped = Run(tmp_path / "stopped", choice, spec)
        for run in (whole, stopped):
            run.take_in(seq)
            run.learn()
    assert whole.learner.updates == stopped.learner.updates > 100
    assert torch.equal(whole.weights(), stopped.weights())
    assert whole.replay._limiter == stopped.replay._limiter
    for run in (whole, stopped):
        run.close()
