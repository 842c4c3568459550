"""What is saved together, and what may leave the journal then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sim import on_loop
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import JournalConfig, NetworkConfig, TrainingConfig
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.audit import Decided, Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.training.brain import make_brain
from cloud_learner.training.checkpoint import CheckpointStore
from cloud_learner.training.experience import Admitted
from cloud_learner.training.saver import Saver
from cloud_learner.training.source import Moment
from cloud_learner.training.stats import TrainingStats
from cloud_learner.training.transition_replay import Sampling, TransitionReplay
from cloud_learner.uplink.admission import KnownVersions
from shoal.envelope import ChunkKey
from shoal.trajectory import encode_chunk

SPEC = cartpole_spec()


def fleet() -> Fleet:
    facts = LearnerFacts(
        decided=lambda _: Decided(),
        updates=lambda: 0,
        updates_of=lambda _: None,
        replay_steps=lambda: 0,
        counters=Counter(),
    )
    return Fleet(facts, TrainingStats())


@on_loop
async def test_what_is_in_replay_stays_in_the_journal_and_is_a_condition_where_it_is_too_much(
    tmp_path: Path,
) -> None:
    dqn = TrainingConfig(
        algorithm="cloud_learner.algorithms.dqn:DQN", network=NetworkConfig(hidden=(8,))
    )
    choice = load_algorithm(dqn.algorithm, {"learning_starts": 8})
    brain = make_brain(SPEC, dqn, choice, seed=0)
    replay = TransitionReplay(40, Sampling.of(choice.settings), seed=0)
    told, counters = fleet(), Counter[str]()
    versions = KnownVersions(lambda _: None, highest=1)
    store = CheckpointStore(tmp_path / "checkpoints")
    with Journal(tmp_path / "journal.db", JournalConfig(retain_bytes=500)) as journal:
        saver = Saver(journal, replay, told, versions, store, counters)
        for seq in range(9):
            chunk, key = make_chunk(SPEC, seed=seq), ChunkKey("pi-1", RUN_ID, seq)
            entry = Entry(key, Disposition.TRAINED, encode_chunk(chunk), 1, chunk.transitions)
            (position,) = journal.append_many([entry])
            assert position is not None
            replay.add([Admitted(key, position, chunk, 0)])
            replay.step(brain.learner, replay.take(Moment(0)))
        await saver.save(brain)
        saved = store.newest()
        assert saved is not None
        held = TransitionReplay.held(saved.source)
        assert 0 < len(held) < 9
        assert {record.position for record in journal.newest_first()} == held
        assert told.learner_state == "retention_exceeded"
        assert saved.recipe == brain.recipe
    with Journal(tmp_path / "journal.db", JournalConfig()) as journal:
        await Saver(journal, replay, told, versions, store, counters).save(brain)
        assert told.learner_state == "waiting_for_device"
