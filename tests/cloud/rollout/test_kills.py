"""A learner killed before and after everything that a rollout writes, and opened again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from policy_logs import seed_of
from rollout_cloud import PLAN_PB, Cloud, Devices, rollout_cloud
from rollouts import BAD, BEGUN, GOOD
from sim import on_loop

from cloud_learner.rollout.decide import Outcome
from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.rollout import Progress, State
from cloud_learner.rollout.rollouts import GRACE_S

PLAN = plan_of(PLAN_PB)
NAMES = ("pi-1", "pi-2", "pi-3")
CANDIDATE, BASELINE = 0, 1  # seeds of the weights
WRITES = 16
"""More than any of the ways below writes: the last kills never come."""


class Killed(Exception):
    """The process is gone."""


class Reaper:
    """Kills at one write, before or after it."""

    def __init__(self, cloud: Cloud, at: int, *, after: bool) -> None:
        self._left = at
        self._after = after
        for owner, name in ((cloud.store, "create"), (cloud.store, "save")):
            self._wrap(owner, name)
        self._wrap(cloud.log, "publish_again")

    def _wrap(self, owner: object, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def write(*arguments: Any) -> Any:  # noqa: ANN401 - as it is wrapped
            self._left -= 1
            if self._left < 0 and not self._after:
                raise Killed
            found = real(*arguments)
            if self._left < 0:
                raise Killed
            return found

        setattr(owner, name, write)


async def live(cloud: Cloud, outcome: Outcome) -> None:
    """The whole of a rollout."""
    rollout = await cloud.rollouts.start(PLAN)
    for said in (BEGUN, outcome, GOOD):
        for name in NAMES:
            found = cloud.rollouts.find(0)
            if found is not None and name in found.members and not found.state.ended:
                await cloud.rollouts.hear(rollout.rollout_id, name, said)
    await cloud.rollouts.look()


def check(cloud: Cloud) -> None:
    """Nobody is offered the candidate but who is to have it."""
    rollout = cloud.rollouts.find(0)
    for name in NAMES:
        published = cloud.log.get(cloud.offered(name))
        assert published is not None
        if seed_of(published) == CANDIDATE:
            assert rollout is not None
            member = rollout.members.get(name)
            follows = rollout.state in (State.ACTIVE, State.PAUSED)
            in_wave = member is not None and member.progress is not Progress.FAILED
            assert rollout.state is State.PROMOTED or (follows and in_wave)
        else:
            assert seed_of(published) == BASELINE


@pytest.mark.parametrize("outcome", [GOOD, BAD], ids=["good", "bad"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", range(WRITES))
@on_loop
async def test_whenever_it_is_killed_nobody_gets_what_was_not_meant_for_him_and_it_goes_on(
    tmp_path: Path, write: int, when: str, outcome: Outcome
) -> None:
    devices = Devices()
    devices.add(*NAMES)
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        Reaper(cloud, write, after=when == "after")
        try:
            await live(cloud, outcome)
        except Killed:
            pass
        else:
            rollout = cloud.rollouts.find(0)
            assert rollout is not None
            assert rollout.state is (State.PROMOTED if outcome is GOOD else State.ABORTED)
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        check(cloud)
        await cloud.rollouts.look()
        check(cloud)
        await cloud.pass_time(GRACE_S)
        rollout = cloud.rollouts.find(0)
        if rollout is not None and not rollout.state.ended:
            for name in NAMES * 2:
                await cloud.rollouts.hear(rollout.rollout_id, name, outcome)
            check(cloud)
            rollout = cloud.rollouts.find(0)
            assert rollout is not None
            assert rollout.state is (State.PROMOTED if outcome is GOOD else State.ABORTED)
        check(cloud)
        if rollout is not None and rollout.state is State.ABORTED:
            assert {cloud.offered(name) for name in NAMES} == {cloud.log.highest_version}
        await cloud.rollouts.start(PLAN)  # nothing is stuck
