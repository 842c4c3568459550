"""The learner as a whole, killed and resumed at any point; all of it real but the network."""

from __future__ import annotations

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
    chunk_of,
    config_in,
    learning,
    take_in,
    until_newer,
    until_trained,
    weights,
)
from sim import SimDevice, on_loop, until
from strategies import RUN_ID

from cloud_learner.core import Core, open_core
from cloud_learner.fleet.event_log import Query
from cloud_learner.journal.audit import Disposition, RunKey
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.admission import decide
from cloud_learner.uplink.arrivals import Birth, open_reports
from shoal.errors import ConfigError
from shoal.spaces import Discrete


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
            digests.add(known.twin_digests)
    assert digests == {manifest.twin_digests}


@on_loop
async def test_a_version_that_int8_would_cost_too_much_says_what_it_would_have_cost(
    tmp_path: Path,
) -> None:
    usual = config_in(tmp_path)
    config = replace(usual, training=replace(usual.training, kl_quantization_max=1e-12))
    async with learning(config) as core:
        take_in(core, range(CHUNKS))
        await until_trained(core, 4)
        manifest = core.parts.policy_log.list()[0].manifest
        assert manifest.precision != "int8"
        assert "int8 is" in manifest.reason
        told = core.parts.fleet.log.newest(Query(kinds=frozenset({"precision_fallback"})), limit=9)
        assert [each.event.fields["precision"] for each in told] == [manifest.precision]  # once
        assert "quantization_aware" in told[0].event.message
        assert core.parts.counters["precision_fallbacks"] >= 1


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
