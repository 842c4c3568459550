"""A device that proves policies and tells what became of them; who acts is the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from policy_logs import KEY
from policy_publisher import Publisher
from rollout_cloud import FLEET, PLAN_PB, Cloud, Devices
from strategies import RUN_ID, make_chunk

from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.rollout import Rollout
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
