"""Agents updated over the network with real processes: broker, learner, relay, launchers, agent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brokers import free_port
from child_process import Process
from slot_devices import SlotDevice, write_release

from cloud_learner.downlink.signing import load_signing_key
from shoal.identity import Identity
from shoalctl.demo.workspace import FLEET, DemoPlan, Workspace, make_workspace
from shoalctl.pki.pki import FleetPki, Role

SHOAL = (sys.executable, "-m", "shoalctl.cli")
WAIT_S = 400.0
"""Installing takes seconds, and minutes where other tests run."""
DEVICES = 2
BEHIND = "device-1"
"""It knows the relay alone; the other one asks the learner itself."""
OLD, GOOD, BROKEN = "0.1.0-1", "0.2.0-1", "0.3.0-1"


@dataclass
class Site:
    """A fleet of devices with slots, and its operator."""

    workspace: Workspace
    devices: dict[str, SlotDevice]
    relay_bundles: Path

    def operator(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [
                *(*SHOAL, "rollout", *words, "-o", "json"),
                *("--server", self.workspace.server, "--identity", str(self.workspace.operator)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        (item,) = json.loads(done.stdout)["items"]
        assert isinstance(item, dict)
        return item

    def bundle(self, version: str) -> str:
        return str(self.workspace.directory / f"{version}.tar")

    def versions(self) -> set[str]:
        return {device.version for device in self.devices.values()}


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for what other processes do."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)  # between two looks at files of other processes


def relay_command(workspace: Workspace, directory: Path, port: int) -> list[str]:
    """Of a relay in front of the learner."""
    identity = FleetPki.load(workspace.directory / "pki").issue("site-a", Role.RELAY)
    options = {
        "--fleet": FLEET,
        "--identity": str(identity),
        "--state-dir": str(directory),
        "--upstream": workspace.server,
        "--port": str(port),
    }
    return [*SHOAL, "relay", "run", *(word for option in options.items() for word in option)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    directory = tmp_path / "site"
    directory.mkdir()
    plan = DemoPlan("CartPole-v1", devices=DEVICES, seed=3, envs=2)
    workspace = make_workspace(directory, plan)
    identities = directory / "pki" / "identities"
    key = load_signing_key(Identity.load(identities / "learner"))
    for version in (OLD, GOOD, BROKEN):
        path = directory / f"{version}.tar"
        write_release(path, version, fleet=FLEET, key=key, broken=version == BROKEN)
    devices = {name: SlotDevice(tmp_path / name) for name in plan.device_ids}
    relay_port = free_port()

    def set_up(name: str) -> None:
        device = devices[name]
        text = (directory / f"{name}.toml").read_text()
        lines = [
            f'state_dir = "{device.state_dir}"' if line.startswith("state_dir") else line
            for line in text.splitlines()
        ]
        config = "\n".join([*lines, "", "[trial]", "acts = 2", ""])
        if name == BEHIND:
            config = config.replace(workspace.server.rpartition(":")[2], str(relay_port))
        device.set_up(config, directory / f"{OLD}.tar", key.public_key().public_bytes_raw())
        shutil.copytree(identities / name, device.state_dir / "identity")

    with ThreadPoolExecutor(DEVICES) as threads:
        list(threads.map(set_up, devices))
    with ExitStack() as stack:

        def start(process: Process) -> Process:
            stack.callback(process.stop)
            return process

        start(Process([*SHOAL, *workspace.broker.arguments])).wait_for_line("broker_ready")
        learner = start(Process([*SHOAL, *workspace.learner.arguments]))
        learner.wait_for_line("grpc_listening", timeout_s=WAIT_S)
        relay = start(Process(relay_command(workspace, tmp_path / "relay", relay_port)))
        relay.wait_for_line("grpc_listening", timeout_s=WAIT_S)
        for device in devices.values():
            start(device.start())
        yield Site(workspace, devices, tmp_path / "relay" / "bundles")


@pytest.mark.timeout(1200)
def test_a_good_agent_is_committed_behind_a_relay_too_and_a_broken_one_rolls_back_and_stops_there(
    site: Site,
) -> None:
    until(lambda: site.versions() == {OLD}, "the first slots acted")
    started = site.operator(
        *("start", "--bundle", site.bundle(GOOD), "--wave", "1,100%", "--wave-timeout", "15m"),
    )
    assert (started["version"], started["state"]) == (GOOD, "active")
    until(
        lambda: site.operator("status")["state"] != "active",
        f"the rollout ended: {started}",
    )
    ended = site.operator("status")
    assert ended["state"] == "promoted", ended
    assert ended["succeeded"] == DEVICES
    assert site.versions() == {GOOD}
    assert all("acted" in member["reason"] for member in ended["members"])
    # It came through the relay, which proved it and keeps it for the others of its site.
    assert len(list(site.relay_bundles.glob("*.tar"))) == 1

    site.operator(
        *("start", "--bundle", site.bundle(BROKEN), "--wave", "1,100%", "--wave-timeout", "15m"),
    )
    until(lambda: site.operator("status")["state"] != "active", "the broken one ended")
    broken = site.operator("status")
    assert broken["state"] == "aborted", broken
    (canary,) = broken["members"]
    assert "rolled back: it died" in canary["reason"]
    until(lambda: site.versions() == {GOOD}, "all run what they ran before")
    # Why each switch happened is kept on the device.
    history = site.devices[canary["device_id"]].state.history
    assert [f"{entry.happening}" for entry in history if entry.happening != "died"][-3:] == [
        "installed",
        "switched",
        "rolled_back",
    ]
    assert any("rollout 2, wave 1 of 2" in entry.reason for entry in history)
