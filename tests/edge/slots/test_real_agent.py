"""The real agent under the launcher: it acts without any network, and that commits its slot."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from brokers import free_port, identity
from mqtt_learner import DEVICE
from policy_publisher import Publisher
from slot_device import LONG_S, Manager, SlotDevice, make_device, on_trial

from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.slots.state import Name
from shoalctl.pki.pki import FleetPki

FLEET = "demo"


def with_the_real_agent(directory: Path, *, policy: bool, deadline_s: float) -> SlotDevice:
    """Slot b, on trial, is this very Shoal."""
    device = on_trial(make_device(directory))
    pki = FleetPki.create(directory / "pki", FLEET)
    who = shutil.copytree(identity(pki, DEVICE), device.layout.identity)
    shoal = device.layout.command(Name.B)
    shoal.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoalctl.cli "$@"\n')
    device.layout.config.write_text(f"""
fleet = "{FLEET}"
identity = "{who}"
state_dir = "{device.layout.state_dir}"
[env]
id = "CartPole-v1"
[actor]
chunk_steps = 64
[broker]
port = {free_port()}
[parameter_server]
port = {free_port()}
[trial]
deadline_s = {deadline_s}
""")
    if policy:
        with make_env(EnvConfig("CartPole-v1")) as envs:
            spec = envs.spec
        assert pki._policy_key is not None
        publisher = Publisher(fleet=FLEET, spec=spec, key=pki._policy_key)
        published = publisher.publish(1)
        with PolicyStore(
            device.layout.state_dir / "policies",
            fleet=FLEET,
            public_key=publisher.public_key,
            spec=spec,
        ) as policies:
            policies.offer(published.bundle, published.fetch)
    return device


@pytest.mark.timeout(400)
def test_it_acts_three_episodes_without_a_network_and_is_committed(tmp_path: Path) -> None:
    device, manager = with_the_real_agent(tmp_path / "d", policy=True, deadline_s=900), None
    manager = Manager(tmp_path)
    with device.run(listener=manager.address) as launcher:
        launcher.wait_for_line("slot b is committed", timeout_s=LONG_S)
        for said in ("READY=1", "STATUS=acting with policy 1", "WATCHDOG=1"):
            manager.wait_for(said)
        launcher.wait_for_line("slot_committed", timeout_s=LONG_S)  # told to the fleet
        assert any("slot_switched" in line for line in launcher.lines)
    manager.close()
    state = device.store.read()
    assert state.current is Name.B
    assert "with policy 1" in state.history[-1].reason


@pytest.mark.timeout(400)
def test_without_a_policy_and_a_cloud_it_holds_past_its_time(tmp_path: Path) -> None:
    device, manager = with_the_real_agent(tmp_path / "d", policy=False, deadline_s=60), None
    manager = Manager(tmp_path)
    with device.run(listener=manager.address) as launcher:
        launcher.wait_for_line("held: no policy", timeout_s=LONG_S)
        manager.wait_for("STATUS=held: no policy")
        manager.wait_for("WATCHDOG=1", times=manager.heard.count("WATCHDOG=1") + 3)
    manager.close()
    assert device.store.read().current is Name.B
