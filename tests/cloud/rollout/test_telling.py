"""What a rollout did is told once for each thing that happened."""

from __future__ import annotations

from pathlib import Path

from rollout_cloud import PLAN_PB, report, rollout_cloud
from sim import on_loop

from cloud_learner.rollout.decide import Outcome
from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.rollout import Progress
from shoal.v1 import rollout_pb2 as pb


@on_loop
async def test_a_device_that_acts_on_is_told_of_when_it_begins_and_when_it_succeeds(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        started = await cloud.rollouts.start(plan_of(PLAN_PB))
        (canary,) = started.members
        for episodes in range(3):
            await report(cloud, canary, pb.ROLLOUT_PROGRESS_STARTED, episodes=episodes)
        assert told_of(cloud.devices.events, canary) == ["rollout_offered", "rollout_started"]
        # Another run of it began in between: that is news.
        another = Outcome(Progress.STARTED, run_id=bytes([9] * 16))
        await cloud.rollouts.hear(started.rollout_id, canary, another)
        await report(cloud, canary, pb.ROLLOUT_PROGRESS_SUCCEEDED)
        assert told_of(cloud.devices.events, canary) == [
            "rollout_offered",
            "rollout_started",
            "rollout_started",
            "rollout_succeeded",
        ]


def told_of(events: list[str], device_id: str) -> list[str]:
    """The names of a device's events."""
    words = [each.split() for each in events]
    return [name.removesuffix(":") for who, name, *_ in words if who == device_id]
