"""Snapshots: a learner at work writes a whole checkpoint under a name, and another begins by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from learner_core import CHUNKS, config_in, learning, take_in, until_trained, weights
from sim import on_loop, until
from strategies import cartpole_spec

from cloud_learner.core import Core
from cloud_learner.training.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint
from cloud_learner.training.snapshots import Snapshots
from shoal.errors import CheckpointError, ConfigError


def snapshots(core: Core, directory: Path, *, most: int = 64) -> Snapshots:
    return Snapshots(directory / "snapshots", core.trainer.when_at_rest, max_snapshots=most)


@on_loop
async def test_a_snapshot_in_the_midst_of_training_is_whole_and_another_learner_begins_with_it(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path, checkpoint_interval_s=1e9)
    async with learning(config) as core:
        taker = snapshots(core, tmp_path)
        take_in(core, range(CHUNKS))
        first, _ = await asyncio.gather(
            taker.take("early", dry_run=False), until_trained(core, CHUNKS // 2)
        )
        await until(lambda: not core.parts.replay.steps and not core.trainer._midway)
        last = await taker.take("", dry_run=False)
        updates = core.trainer.updates
        held = weights(core)
    assert last.name == f"u{last.updates}"
    assert first.updates <= last.updates == updates
    path = tmp_path / "snapshots" / f"{last.name}.checkpoint"
    assert (last.path, last.bytes) == (str(path), path.stat().st_size)
    read = read_checkpoint(path)
    assert (read.version, read.spec.env_id) == (last.policy_version, last.env_id)
    assert read_checkpoint(Path(first.path)).learner["updates"] == first.updates
    checkpoint = newest_checkpoint(tmp_path / "checkpoints")  # which goes on as if nothing were
    assert checkpoint is not None
    other = replace(config, state_dir=tmp_path / "other", init=path)
    async with learning(other) as begun:
        assert begun.trainer.updates == last.updates
        assert (weights(begun) == held).all()


@on_loop
async def test_a_dry_run_says_how_large_it_would_be_and_writes_nothing(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        taker = snapshots(core, tmp_path)
        planned = await taker.take("calm", dry_run=True)
        assert not (tmp_path / "snapshots").exists()
        written = await taker.take("calm", dry_run=False)
    assert planned == written


@on_loop
async def test_a_name_is_used_once_and_is_no_path(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        taker = snapshots(core, tmp_path, most=2)
        await taker.take("calm", dry_run=False)
        with pytest.raises(ConfigError, match="there already"):
            await taker.take("calm", dry_run=False)
        for name in ("../calm", "a/b", ".hidden", "x" * 64, "ca lm", "é"):
            with pytest.raises(ConfigError, match="cannot be called"):
                await taker.take(name, dry_run=False)
        await taker.take("storm", dry_run=False)
        with pytest.raises(ConfigError, match="2 snapshots"):
            await taker.take("third", dry_run=False)


@on_loop
async def test_there_is_nothing_to_save_before_the_first_device(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        core.trainer._brain, brain = None, core.trainer._brain
        with pytest.raises(ConfigError, match="first device"):
            await snapshots(core, tmp_path).take("calm", dry_run=False)
        core.trainer._brain = brain


@on_loop
async def test_a_disk_that_refuses_says_where(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("a file")
    async with learning(config_in(tmp_path)) as core:
        with pytest.raises(CheckpointError, match="snapshots"):
            await snapshots(core, tmp_path).take("calm", dry_run=False)


@on_loop
async def test_a_snapshot_waits_for_the_step_in_progress(tmp_path: Path) -> None:
    async with learning(config_in(tmp_path)) as core:
        taken: list[Checkpoint] = []
        note: Callable[[Checkpoint], object] = taken.append
        core.trainer._midway = True
        core.trainer.when_at_rest(note)
        assert not taken
        take_in(core, range(CHUNKS))
        await until_trained(core, 1)
        (checkpoint,) = taken
        assert checkpoint.spec.fingerprint == cartpole_spec().fingerprint
        assert checkpoint.learner["updates"] > 0
