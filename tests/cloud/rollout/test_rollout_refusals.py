"""Rollouts that are not started, and what is said of one that gets in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rollout_cloud import PLAN_PB, rollout_cloud
from sim import on_loop

from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.plan import Plan
from cloud_learner.rollout.rollout import State
from cloud_learner.rollout.rollouts import IDLE_TRAINING
from shoal.errors import ConfigError
from shoal.v1 import rollout_pb2 as pb

PLAN = plan_of(PLAN_PB)
STARTED = pb.ROLLOUT_PROGRESS_STARTED
SUCCEEDED = pb.ROLLOUT_PROGRESS_SUCCEEDED
FAILED = pb.ROLLOUT_PROGRESS_FAILED
NAMES = ("pi-1", "pi-2", "pi-3")


def plan_with(*, version: str = "1", waves: tuple[pb.RolloutWave, ...] = ()) -> Plan:
    message = pb.RolloutPlan(version=version, waves=waves)
    changed = pb.RolloutPlan()
    changed.CopyFrom(PLAN_PB)
    if waves:
        changed.ClearField("waves")
    changed.MergeFrom(message)
    return plan_of(changed)


@on_loop
async def test_one_of_a_kind_goes_on_at_a_time_and_a_stuck_one_can_always_be_aborted(
    tmp_path: Path,
) -> None:
    """A deployment stuck IN_PROGRESS blocks the next (greengrass-nucleus#1203 #807)."""
    async with rollout_cloud(tmp_path) as cloud:
        first = await cloud.rollouts.start(PLAN)
        cloud.devices.absent.update(NAMES)
        with pytest.raises(ConfigError, match="shoal rollout abort 1"):
            await cloud.rollouts.start(PLAN)
        await cloud.rollouts.enter(first.rollout_id, State.PAUSED, "a look")
        ended = await cloud.rollouts.enter(first.rollout_id, State.ABORTED, "enough")
        assert ended.state is State.ABORTED
        with pytest.raises(ConfigError, match="is aborted already"):
            await cloud.rollouts.enter(first.rollout_id, State.ACTIVE, "")
        assert (await cloud.rollouts.start(PLAN)).rollout_id == 2


@on_loop
async def test_a_version_that_is_not_kept_or_the_only_one_is_refused_with_what_there_is(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path, policies=1) as cloud:
        with pytest.raises(ConfigError, match="the only one"):
            await cloud.rollouts.start(PLAN)
        missing = plan_with(version="9")
        with pytest.raises(ConfigError, match="kept are 1 to 1"):
            await cloud.rollouts.start(missing)
        assert cloud.rollouts.find(0) is None


@on_loop
async def test_a_rollout_for_nobody_is_refused_and_holds_no_device(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        before = {each: cloud.offered(each) for each in NAMES}
        with pytest.raises(ConfigError, match=f"no device is called 'nobody-.*{min(NAMES)}"):
            await cloud.rollouts.start(replace(PLAN, devices="nobody-*"))
        assert cloud.rollouts.find(0) is None
        assert {each: cloud.offered(each) for each in NAMES} == before


@on_loop
async def test_a_rollout_that_holds_devices_beyond_the_lag_bound_is_told_until_it_ends(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        useful = True
        cloud.rollouts._trains_from = lambda _version: useful
        rollout = await cloud.rollouts.start(PLAN)
        await cloud.rollouts.look()
        assert not cloud.devices.conditions
        useful = False
        await cloud.rollouts.look()
        assert (
            f"shoal rollout abort {rollout.rollout_id}" in cloud.devices.conditions[IDLE_TRAINING]
        )
        await cloud.rollouts.enter(rollout.rollout_id, State.ABORTED, "enough")
        await cloud.rollouts.look()
        assert not cloud.devices.conditions
