"""The learner as a whole when part of its state is lost, or of something else."""

from __future__ import annotations

import random
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from learner_core import BATCH, CHUNKS, KEY, SPEC, config_in, learning, take_in, until_trained
from sim import on_loop, until
from strategies import RUN_ID

from cloud_learner.config import NetworkConfig
from cloud_learner.core import Core, open_core
from cloud_learner.journal.audit import RunKey
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.arrivals import Report
from shoal.errors import CheckpointError, ConfigError
from shoal.spaces import Discrete
from shoal.v1 import device_pb2 as pb


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
