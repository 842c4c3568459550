"""A policy rolled out to a device that proves it, over real gRPC; who acts is the test."""

from __future__ import annotations

from pathlib import Path

from policy_device import SECOND, cloud_of, device, rollout_of
from rollout_cloud import rollout_cloud
from sim import on_loop, until

from cloud_learner.rollout.rollout import Progress, State


@on_loop
async def test_a_device_acts_on_what_is_rolled_out_and_only_then_it_is_a_success(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        device(cloud, tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: pi.version == 4)
        await until(lambda: rollout_of(cloud).count(Progress.STARTED) == 1)
        pi.act(2)
        await until(lambda: rollout_of(cloud).members["pi-1"].episodes == 2)
        assert rollout_of(cloud).state is State.ACTIVE
        pi.act(1)
        await until(lambda: rollout_of(cloud).state is State.PROMOTED)
        assert rollout_of(cloud).members["pi-1"].reason == "acted 3 episodes"
        assert cloud.counters["outcomes_refused"] == 0


@on_loop
async def test_a_policy_that_a_device_cannot_reproduce_is_refused_and_taken_back_for_all(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=True)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        device(cloud, tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        before = pi.policies.current
        await cloud.rollouts.start(SECOND)
        await until(lambda: rollout_of(cloud).state is State.ABORTED)
        assert "pi-1: refused it:" in rollout_of(cloud).reason
        assert rollout_of(cloud).versions.candidate == 4
        await until(lambda: pi.version == 5)  # what it had, under a number above
        after = pi.policies.current
        assert before is not None
        assert after is not None
        assert after.digest == before.digest
        assert pi.policies.rejections == {"self_test": 1}


@on_loop
async def test_a_policy_that_a_device_gave_up_while_it_acted_is_taken_back_with_the_reason(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        device(cloud, tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: rollout_of(cloud).count(Progress.STARTED) == 1)
        current = pi.policies.current
        assert current is not None
        pi.policies.condemn(current, "non_finite")
        await until(lambda: rollout_of(cloud).state is State.ABORTED)
        assert "gave it up while it acted: non_finite" in rollout_of(cloud).reason


@on_loop
async def test_a_learner_that_comes_back_is_told_again_what_it_may_not_have_heard(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        device(cloud, tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: pi.version == 4)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        device(cloud, tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 4)
        await until(lambda: rollout_of(cloud).count(Progress.STARTED) == 1)
        pi.act(3)
        await until(lambda: rollout_of(cloud).count(Progress.SUCCEEDED) == 1)
