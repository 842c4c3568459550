"""An environment, an algorithm and a network of one's own, through the whole system."""

from __future__ import annotations

import subprocess
import sys

import pytest
from demo_process import demo


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "parts",
    [
        (
            *("--algorithm", "examples.reinforce:Reinforce"),
            *("--network", "examples.torso:tapered", "--set", "training.settings.gamma=0.9"),
        ),
        ("--env", "examples.thermostat:Thermostat"),
        ("--env", "examples.cartpole_positions:CartPolePositions", "--network", "attention"),
        (
            *("--env", "examples.cartpole_positions:CartPolePositions", "--network", "lstm"),
            *("--set", "training.network.quantization_aware=true", "--stop-after-steps", "2500"),
        ),
    ],
)
def test_parts_of_ones_own_act_on_devices_in_int8_and_are_trained(parts: tuple[str, ...]) -> None:
    with demo("--stop-after-steps", "6000", "--timeout-s", "120", *parts) as running:
        envelope = running.finish()
        assert running.process.returncode == 0
        assert envelope["policy_versions"] > 1
        assert envelope["updates"] > 0
        assert envelope["quantization"]["precision"].startswith("int8")
        assert envelope["audit"]["balanced"] is True
        # What the devices recorded is what these policies decide.
        words = ["reproduce", "--state", str(running.directory / "learner"), "--device", "device-1"]
        reproduced = subprocess.run(
            [sys.executable, "-m", "shoalctl.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert reproduced.returncode == 0, reproduced.stderr
        assert ", 0 differ" in reproduced.stdout
