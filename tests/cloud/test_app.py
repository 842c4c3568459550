"""The learner as a whole, killed and resumed at any point; all of it real but the network."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sim import SimDevice, on_loop, until
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.core import Core, open_core
from cloud_learner.journal.audit import Disposition, RunKey
from cloud_learner.journal.records import Entry
from cloud_learner.state_dir import StateDir
from cloud_learner.training.experience import Admitted
from cloud_learner.uplink.admission import decide
from cloud_learner.uplink.arrivals import Birth, Report, open_reports
from shoal.errors import CheckpointError, ConfigError
from shoal.spaces import Discrete, EnvSpec
from shoal.trajectory import Chunk, ChunkKey, encode_chunk
from shoal.v1 import device_pb2 as pb

SPEC = cartpole_spec()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
BATCH, CHUNKS = 16, 12


def config_in(directory: Path, *, checkpoint_interval_s: float = 0.0) -> LearnerConfig:
    return LearnerConfig(
        fleet="demo",
        identity=directory,
        state_dir=directory,
        training=TrainingConfig(
            batch_steps=BATCH,
            network=NetworkConfig(hidden=(8,)),
            max_lag=10_000,
            settings={"epochs": 2, "minibatches": 2},
        ),
        checkpoint_interval_s=checkpoint_interval_s,
        tensorboard=False,
    )


@asynccontextmanager
async def learning(
    config: LearnerConfig, *, kill: bool = False, births: tuple[EnvSpec, ...] = (SPEC,)
) -> AsyncIterator[Core]:
    """A learner that trains; at the end it is stopped, or killed so that nothing is saved."""
    torch.set_num_threads(1)
    state = StateDir.open(config.state_dir, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(config, state, KEY, stack, rng=random.Random(0))
        for spec in births:
            core.parts.fleet.note_status(Birth(birth(), spec))
        async with asyncio.TaskGroup() as group:
            training = group.create_task(core.trainer.serve(core.restored))
            await until(lambda: core.trainer.standard() is not None)
            yield core
            core.trainer._midway = core.trainer._midway or kill
            training.cancel()


def birth() -> pb.Status:
    return pb.Status(
        device_id="pi-1", run_id=RUN_ID, state=pb.DEVICE_STATE_ONLINE, env_spec=SPEC.to_pb()
    )


def chunk_of(core: Core, seq: int) -> Chunk:
    known = core.parts.versions.find(1)
    assert known is not None
    assert known.digest is not None
    return replace(make_chunk(SPEC, seed=seq), policy_version=1, policy_digest=known.digest)


def take_in(core: Core, seqs: range) -> None:
    """Does what ingest does with chunks, in this order."""
    standard = core.trainer.standard()
    assert standard is not None
    for seq in seqs:
        key, chunk = ChunkKey("pi-1", RUN_ID, seq), chunk_of(core, seq)
        verdict = decide(chunk, standard)
        assert verdict.disposition is Disposition.TRAINED
        entry = Entry(key, verdict.disposition, encode_chunk(chunk), 1, chunk.transitions)
        (position,) = core.parts.journal.append_many([entry])
        if position is not None:
            core.parts.replay.add([Admitted(key, position, chunk, verdict.version_updates)])


async def until_trained(core: Core, batches: int) -> None:
    await until(lambda: core.parts.counters["batches"] >= batches)


def weights(core: Core) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert core.trainer._brain is not None
    parameters = core.trainer._brain.learner.policy.parameters()
    return np.concatenate([p.detach().numpy().ravel() for p in parameters])


async def train_through(directory: Path, kills: list[int], interval_s: float) -> Core:
    """Trains from all chunks, killed after some batches of each life; returns the last core."""
    config = config_in(directory, checkpoint_interval_s=interval_s)
    for batches in kills:
        async with learning(config, kill=True) as core:
            take_in(core, range(CHUNKS))
            await until_trained(core, batches)
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until(lambda: not core.parts.replay.steps and not core.trainer._midway)
    return core


@pytest.mark.parametrize("interval_s", [0.0, 1e9])
@pytest.mark.parametrize("kills", [[0], [1], [3], [2, 1], [1, 0, 2]])
def test_a_learner_that_was_killed_ends_with_the_weights_of_one_that_was_not(
    tmp_path: Path, kills: list[int], interval_s: float
) -> None:
    @on_loop
    async def scenario() -> None:
        (tmp_path / "whole").mkdir()
        (tmp_path / "killed").mkdir()
        whole = await train_through(tmp_path / "whole", [], interval_s)
        killed = await train_through(tmp_path / "killed", kills, interval_s)
        np.testing.assert_array_equal(weights(killed), weights(whole))

    scenario()


@on_loop
async def test_an_int8_version_has_a_float_twin_that_chunks_may_come_from_after_a_restart_too(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path, checkpoint_interval_s=1e9)
    digests = set()
    for _ in range(2):
        async with learning(config) as core:
            log, known = core.parts.policy_log, core.parts.versions.find(1)
            manifest = next(i.manifest for i in log.list() if i.manifest.version == 1)
            assert manifest.precision == "int8"
            assert log.graph(manifest.float_graph_digest) is not None
            assert known is not None
            digests.add(known.twin_digest)
    assert digests == {manifest.twin_digest}


@on_loop
async def test_versions_and_updates_never_go_back_after_a_kill(tmp_path: Path) -> None:
    config = config_in(tmp_path, checkpoint_interval_s=1e9)
    async with learning(config, kill=True) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 4)
        before = core.parts.policy_log.list()[0].manifest
    async with learning(config) as core:
        manifests = [info.manifest for info in core.parts.policy_log.list()]
        resumed = next(each for each in manifests if each.reason == "resume")
        assert resumed.version > before.version
        assert resumed.updates >= before.updates
        assert core.parts.parameter_server.offered_version >= resumed.version


@on_loop
async def test_a_stopped_learner_resumes_without_training_anything_again(tmp_path: Path) -> None:
    config = config_in(tmp_path, checkpoint_interval_s=1e9)
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 6)
        expected = weights(core)
    async with learning(config) as core:
        assert core.parts.replay.steps == 0
        np.testing.assert_array_equal(weights(core), expected)
        assert core.parts.stats.env_steps == CHUNKS * 8


@on_loop
async def test_the_return_of_the_last_episodes_is_known_right_after_a_restart(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with learning(config, kill=True) as core:
        take_in(core, range(CHUNKS))
        assert np.isnan(core.parts.stats.return_mean)  # only ingest counts, and it is not here
    async with learning(config) as core:
        assert core.parts.stats.return_mean == 21.5


@on_loop
async def test_what_devices_reported_before_a_restart_is_still_audited(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    device = SimDevice("pi-1")
    device.produce(b"never sent")
    async with learning(config) as core:
        for report in open_reports([device.telemetry_message()]).telemetries:
            core.parts.fleet.note_telemetry(report)
    async with learning(config) as core:
        total = core.parts.fleet.audit().total
        assert (total.produced, total.in_flight, total.balanced) == (1, 1, True)


@on_loop
async def test_a_chunk_over_the_lag_bound_is_never_trained_and_expires_in_the_journal(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    config = replace(config, training=replace(config.training, max_lag=4))
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 2)
        await until(lambda: not core.parts.replay.steps and not core.trainer._midway)
        decided = core.parts.journal.decided(RunKey("pi-1", RUN_ID))
        assert (decided.trained.count(), decided.expired.count()) == (4, 8)
        assert core.parts.counters["expired_in_replay"] == 8


@on_loop
async def test_a_full_disk_stops_publishing_and_saving_but_not_training(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        versions = tmp_path / "policies" / "versions"
        moved = tmp_path / "policies" / "away"
        versions.rename(moved)
        take_in(core, range(6))
        await until_trained(core, 3)
        assert core.parts.fleet.learner_state == "cannot_publish"
        moved.rename(versions)
        take_in(core, range(6, CHUNKS))
        await until_trained(core, 6)
        assert core.parts.fleet.learner_state == "training"


@pytest.mark.parametrize("mode", ["async", "lockstep"])
@on_loop
async def test_a_version_that_the_disk_refused_comes_once_there_is_room_without_more_chunks(
    mode: str, tmp_path: Path
) -> None:
    """In lockstep nobody makes any until it comes."""
    config = config_in(tmp_path)
    training = replace(config.training, mode=mode, lockstep_chunks=2)  # type: ignore[arg-type]
    async with learning(replace(config, training=training)) as core:
        first = core.parts.parameter_server.offered_version
        versions = tmp_path / "policies" / "versions"
        versions.rename(tmp_path / "away")
        take_in(core, range(2))
        # After the batch, before it waits for the next one, and while it waits.
        await until(lambda: core.parts.counters["publish_failures"] >= 3)
        assert core.parts.fleet.learner_state == "cannot_publish"
        (tmp_path / "away").rename(versions)
        await until_newer(core, first)
        await until(lambda: core.parts.fleet.learner_state == "training")


@on_loop
async def test_a_device_with_other_spaces_gets_an_event_and_stops_nothing(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        other = replace(SPEC, action=Discrete(3))
        status = birth()
        status.device_id = "pi-2"
        core.parts.fleet.note_status(Birth(status, other))
        described = core.parts.fleet.describe("pi-2")
        assert described is not None
        assert [known.event.name for known in described.events] == ["spec_mismatch"]


def test_a_new_run_is_not_started_over_an_old_one(tmp_path: Path) -> None:
    @on_loop
    async def scenario() -> None:
        async with learning(config_in(tmp_path)):
            pass

    scenario()
    with pytest.raises(ConfigError, match="shoal learner resume"):
        StateDir.open(tmp_path, resume=False)
    assert StateDir.open(tmp_path, resume=True).holds_a_run


def move_journal_aside(directory: Path) -> None:
    for path in directory.glob("journal.db*"):
        path.rename(directory / f"aside-{path.name}")


OTHER = replace(SPEC, action=Discrete(3))


def report_of(version: int) -> Report:
    return Report(
        pb.Telemetry(
            device_id="pi-1", run_id=RUN_ID, uptime_s=float(version), active_version=version
        ),
        {},
    )


def learner_events(core: Core) -> list[str]:
    described = core.parts.fleet.describe("learner")
    return [] if described is None else [known.event.name for known in described.events]


@on_loop
async def test_without_its_checkpoints_a_learner_goes_on_with_fresh_weights_above_its_policy_log(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 4)
    shutil.rmtree(tmp_path / "checkpoints")
    async with learning(config) as core:
        manifests = [info.manifest for info in core.parts.policy_log.list()]
        fresh = next(each for each in manifests if each.reason == "fresh_weights")
        before = next(each for each in manifests if each.version < fresh.version)
        assert fresh.updates == before.updates > 0
        assert core.trainer.updates >= before.updates


@on_loop
async def test_a_birth_of_other_spaces_does_not_replace_those_that_were_trained_for(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    async with learning(config, births=(OTHER, SPEC)) as core:
        standard = core.trainer.standard()
        assert standard is not None
        assert standard.spec.fingerprint == SPEC.fingerprint
        assert "birth_of_other_spaces" in learner_events(core)
        assert core.parts.fleet.learner_state == "training"
        assert not core.parts.journal.decided(RunKey("pi-1", RUN_ID)).rejected


@on_loop
async def test_the_journal_alone_still_tells_which_spaces_are_trained_for(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        take_in(core, range(2))
    shutil.rmtree(tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "policies")
    async with learning(config, births=(OTHER, SPEC)) as core:
        assert core.parts.policy_log.list()[-1].manifest.spec_fingerprint == SPEC.fingerprint
        assert not core.parts.journal.decided(RunKey("pi-1", RUN_ID)).rejected


@on_loop
async def test_a_learner_that_lost_its_state_jumps_above_the_versions_of_its_devices(
    tmp_path: Path,
) -> None:
    async with learning(config_in(tmp_path)) as core:
        core.parts.fleet.note_telemetry(report_of(1437))
        await until(lambda: core.parts.parameter_server.offered_version == 1438)
        assert core.parts.policy_log.list()[0].manifest.reason == "version_jump"
        assert "version_jumped" in learner_events(core)
        assert core.parts.counters["version_jumps"] == 1
        take_in(core, range(CHUNKS))
        await until_trained(core, 1)


@on_loop
async def test_new_versions_are_above_the_configured_one(tmp_path: Path) -> None:
    config = replace(config_in(tmp_path), policies_after_version=5_000_000)
    async with learning(config) as core:
        assert core.parts.parameter_server.offered_version == 5_000_001


@on_loop
async def test_after_its_journal_was_moved_aside_new_chunks_are_not_taken_for_trained_ones(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until(lambda: not core.parts.replay.steps and not core.trainer._midway)
    move_journal_aside(tmp_path)
    config = replace(config, training=replace(config.training, batch_steps=BATCH * 4))
    async with learning(config, kill=True) as core:
        take_in(core, range(2))
    async with learning(config) as core:
        assert core.parts.replay.steps == 2 * 8


# ------------------------------------------------------------------------ algorithms with replay

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


async def until_newer(core: Core, version: int) -> None:
    await until(lambda: core.parts.parameter_server.offered_version > version)


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


def test_a_wrong_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    wrong = replace(config, training=replace(config.training, settings={"clop": 0.1}))
    state = StateDir.open(tmp_path, resume=True)

    @on_loop
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            with pytest.raises(ConfigError, match=r"training\.settings\.clop.*clip"):
                open_core(wrong, state, KEY, stack, rng=random.Random(0))

    scenario()


@pytest.mark.parametrize("interval_s", [0.0, 1e9])
@on_loop
async def test_a_resume_does_not_inflate_the_staleness_budget(
    tmp_path: Path, interval_s: float
) -> None:
    config = config_in(tmp_path, checkpoint_interval_s=interval_s)
    async with learning(config, kill=True) as core:
        take_in(core, range(CHUNKS))
        await until(lambda: core.parts.policy_log.list()[0].manifest.updates > 0)
        before = core.parts.policy_log.list()[0].manifest
    async with learning(config) as core:
        standard = core.trainer.standard()
        assert standard is not None
        assert standard.updates_now >= before.updates  # or what is old would pass for new
        newest = standard.versions.find(standard.versions.highest)
        assert newest is not None
        assert newest.updates <= standard.updates_now


@on_loop
async def test_a_chunk_whose_memory_is_of_another_policy_is_rejected(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        standard = core.trainer.standard()
        assert standard is not None
        chunk = replace(chunk_of(core, 0), initial_state=np.zeros((2, 8), np.float32))
        verdict = decide(chunk, standard)
        assert (verdict.disposition, verdict.reason) == (Disposition.REJECTED, "state")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"network": NetworkConfig(hidden=(16,))}, r"hidden \[8\].*asks for.*hidden \[16\]"),
        (
            {"algorithm": "cloud_learner.algorithms.impala:IMPALA", "settings": {}},
            r"appo:APPO.*asks for.*impala:IMPALA",
        ),
    ],
)
@on_loop
async def test_a_resume_with_another_network_or_algorithm_names_both_and_touches_nothing(
    change: dict[str, object], named: str, tmp_path: Path
) -> None:
    config = config_in(tmp_path)
    async with learning(config) as core:
        take_in(core, range(2))
        await until_trained(core, 1)
    other = replace(config, training=replace(config.training, **change))  # type: ignore[arg-type]
    journal = tmp_path / "journal.db"
    aside = journal.rename(tmp_path / "aside")
    async with AsyncExitStack() as stack:
        with pytest.raises(CheckpointError, match=named):
            open_core(other, StateDir(tmp_path), KEY, stack, rng=random.Random(0))
    assert not journal.exists()
    aside.rename(journal)
