"""A policy rolled out to a device that proves it, over real gRPC; who acts is the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from policy_logs import KEY
from policy_publisher import Publisher
from rollout_cloud import FLEET, PLAN_PB, Cloud, Devices, rollout_cloud
from sim import on_loop, until
from strategies import RUN_ID, make_chunk

from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.rollout import Progress, Rollout, State
from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import Downlink
from edge_agent.events import Events
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.updates.acted import Acted
from edge_agent.updates.update_files import UpdateFiles
from edge_agent.updates.updates import Updates
from shoal.policy import sha256

PUBLISHER = Publisher(fleet=FLEET, key=KEY)
PLAN = plan_of(PLAN_PB)


def publish(directory: Path, version: int, *, wrong: bool = False) -> None:
    """Puts a version into a log that nobody has open."""
    golden = None
    if wrong:
        weights = PUBLISHER.weights(seed=version)
        right = PUBLISHER.golden(PUBLISHER.policy(version, seed=version))
        golden = replace(right, log_probs=right.log_probs + np.float32(0.5))
        published = PUBLISHER.publish(version, weights=weights, golden=golden)
    else:
        published = PUBLISHER.publish(version)
    for name in ("versions", "graphs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "versions" / f"{version:08d}.bundle").write_bytes(published.bundle)
    graph = directory / "graphs" / f"{sha256(published.graph).hex()}.onnx"
    graph.write_bytes(published.graph)


@dataclass
class Device:
    """A device that follows, and acts when it is told to."""

    policies: PolicyStore
    acted: Acted
    events: Events

    def act(self, episodes: int) -> None:
        """As the control thread does, with the policy that is current."""
        current = self.policies.current
        assert current is not None
        chunk = replace(
            make_chunk(PUBLISHER.spec),
            policy_version=current.version,
            policy_digest=current.digest,
        )
        while episodes > 0:
            self.acted.note(replace(chunk, episodes=chunk.episodes[:episodes]))
            episodes -= len(chunk.episodes[:episodes])

    @property
    def version(self) -> int:
        current = self.policies.current
        return 0 if current is None else current.version


@asynccontextmanager
async def device(cloud: Cloud, directory: Path, name: str = "pi-1") -> AsyncIterator[Device]:
    events, acted = Events(name, RUN_ID, clock=lambda: 0.0), Acted()
    config = ServerConfig("localhost", cloud.port, backoff_cap_s=0.05)
    who, key = cloud.identity(name), PUBLISHER.public_key
    with PolicyStore(directory, fleet=FLEET, public_key=key, spec=PUBLISHER.spec) as policies:
        downlink = Downlink(config, who, policies, events, fleet=FLEET, run_id=RUN_ID)
        updates = Updates(
            config,
            who,
            events,
            policies,
            downlink,
            acted,
            UpdateFiles(directory / "updates", slots=None),
            fleet=FLEET,
            public_key=key,
            run_id=RUN_ID,
        )
        services = (
            downlink.follow,
            downlink.report_active,
            updates.follow,
            updates.report,
            updates.agent.serve,
        )
        running = [asyncio.ensure_future(each()) for each in services]
        try:
            yield Device(policies, acted, events)
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def cloud_of(tmp_path: Path, *, wrong: bool) -> tuple[Path, Devices]:
    publish(tmp_path / "policies", 1)
    publish(tmp_path / "policies", 2, wrong=wrong)
    publish(tmp_path / "policies", 3)
    devices = Devices()
    devices.add("pi-1")
    return tmp_path, devices


def rollout_of(cloud: Cloud) -> Rollout:
    rollout = cloud.rollouts.find(0)
    assert rollout is not None
    return rollout


SECOND = replace(PLAN, version="2")


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
