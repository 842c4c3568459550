"""A fleet whose policy key lies in a safe: a delegate signs, and the next takes over from it.

All of it real: the fleet is made by the command, broker, learner and agents are processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brokers import HOST, free_port
from child_process import Process

from cloud_learner.downlink.policy_client import fetch_policy
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.pki.registry import DeviceRegistry

SHOAL = (sys.executable, "-m", "shoalctl.cli")
WAIT_S = 120.0
DEVICES = ("pi-1", "pi-2")


@dataclass
class Fleet:
    """A fleet made with --offline-root; the safe is away but when it is asked for."""

    directory: Path
    safe: Path
    mqtt_port: int
    server_port: int
    stack: ExitStack

    @classmethod
    def make(cls, path: Path, stack: ExitStack) -> Fleet:
        fleet, drawer = path / "fleet", path / "drawer"
        shoal("fleet", "init", "pond", "--dir", str(fleet), "--offline-root", str(path / "safe"))
        (path / "safe").rename(drawer)
        made = cls(fleet, drawer, free_port(), free_port(), stack)
        for name in ("broker", "learner"):
            text = (fleet / f"{name}.toml").read_text()
            text = text.replace(" 8883", f" {made.mqtt_port}")
            (fleet / f"{name}.toml").write_text(text.replace(" 50051", f" {made.server_port}"))
        for name in DEVICES:
            FleetPki.load(fleet).issue(name, Role.DEVICE)
        DeviceRegistry(fleet / "devices").add(*DEVICES)
        return made

    def start(self, ready: str, *arguments: str) -> Process:
        process = Process([*SHOAL, *arguments])
        self.stack.callback(process.stop)
        process.wait_for_line(ready, timeout_s=WAIT_S)
        return process

    def learner(self, how: str) -> Process:
        return self.start(
            "grpc_listening", "learner", how, "--config", str(self.directory / "learner.toml")
        )

    def agent(self, name: str) -> Process:
        return self.start(
            '"broker_connected"',
            *("agent", "run", "--fleet", "pond", "--env", "CartPole-v1"),
            *("--identity", str(self.directory / "identities" / name)),
            *("--state-dir", str(self.state_dir(name))),
            *("--broker", f"{HOST}:{self.mqtt_port}", "--server", f"{HOST}:{self.server_port}"),
            *("--set", "parameter_server.backoff_cap_s=0.2"),
        )

    def state_dir(self, name: str) -> Path:
        return self.directory.parent / name

    def marks(self) -> set[str]:
        """Which generations devices have noted."""
        paths = (self.state_dir(name).glob("**/*.generation") for name in DEVICES)
        return {path.stem.lstrip("0") for each in paths for path in each}

    def operator(self, *words: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            shoal(
                *(*words, "-o", "json", "--timeout-s", "60"),
                *("--server", f"{HOST}:{self.server_port}"),
                *("--identity", str(self.directory / "identities" / "operator")),
            )
        )
        return answer

    def acts_by(self, generation: int) -> int:
        """A version that a delegate of that generation signed and every device acts with."""

        def found() -> int:
            for item in self.operator("policy", "ls")["items"]:
                by = item["delegation_generation"]
                if by == generation and set(item["active_devices"]) == set(DEVICES):
                    return int(item["version"])
            return 0

        return until(found, f"nothing acts by generation {generation}")


def shoal(*arguments: str) -> str:
    done = subprocess.run(
        [*SHOAL, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until(found: Callable[[], int], what: str) -> int:
    """Waits for what other processes do."""
    deadline_s = time.monotonic() + WAIT_S
    while not (answer := found()):
        assert time.monotonic() < deadline_s, what
    return answer


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet.make(tmp_path, stack)


@pytest.mark.timeout(600)
def test_the_learner_trains_while_the_policy_key_is_away_and_delegates_take_turns(
    fleet: Fleet,
) -> None:
    fleet.start("broker_ready", "broker", "run", "--config", str(fleet.directory / "broker.toml"))
    learner = fleet.learner("run")
    agents = [fleet.agent(name) for name in DEVICES]
    first = fleet.acts_by(1)
    assert first > 1  # it was trained
    assert fleet.marks() == {"1"}
    assert f"{'Signed by':<15}the delegate of generation 1" in shoal(
        *("policy", "show", str(first), "--server", f"{HOST}:{fleet.server_port}"),
        *("--identity", str(fleet.directory / "identities" / "operator")),
    )

    key = str(fleet.safe / "policy.key")
    shoal("pki", "delegate", "--dir", str(fleet.directory), "--policy-key", key, "--ttl", "90d")
    assert learner.stop() == 0
    fleet.learner("resume")
    second = fleet.acts_by(2)
    assert second > first
    operator = Identity.load(fleet.directory / "identities" / "operator")
    fetched = fetch_policy(f"{HOST}:{fleet.server_port}", operator, version=second)
    assert fetched.manifest.version == second  # proven by what an operator has
    until(lambda: fleet.marks() == {"2"}, "the devices did not note the second generation")
    assert not any(agent.ended for agent in agents)
    counters = fleet.operator("devices", "events", "--limit", "1")["counters"]
    assert not [name for name in counters if "policy_rejected" in name or "delta_refused" in name]


@pytest.mark.timeout(300)
def test_a_learner_warns_of_its_delegations_end_and_does_not_start_after_it(
    fleet: Fleet,
) -> None:
    key, directory = str(fleet.safe / "policy.key"), str(fleet.directory)
    # It is dated back by five minutes: less than a third of seven is left.
    shoal("pki", "delegate", "--dir", directory, "--policy-key", key, "--ttl", "2m")
    learner = fleet.learner("run")
    assert "shoal pki delegate --policy-key" in learner.wait_for_line("delegation_ends")
    (event,) = fleet.operator("devices", "events", "--kind", "delegation_ends")["items"]
    assert (event["source"], event["severity"]) == ("learner", "warning")
    assert learner.stop() == 0
    shoal("pki", "delegate", "--dir", directory, "--policy-key", key, "--ttl", "1s")
    learner = Process([*SHOAL, "learner", "resume", "--config", f"{directory}/learner.toml"])
    fleet.stack.callback(learner.stop)
    said = learner.wait_for_line("ended at", timeout_s=WAIT_S)
    assert "shoal pki delegate --policy-key" in said
    assert learner.wait() == 2
