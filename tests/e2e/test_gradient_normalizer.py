"""Observations that only a normalizer makes learnable, and that never leave the devices."""

from __future__ import annotations

import pytest
from demo_process import demo

SETTINGS = {
    "training.publish_interval": "16",
    "training.settings.entropy_coef": "0.0",
    "training.settings.value_loss": "mse",
    "gradients.learning_rate": "5e-3",
    "gradients.final_learning_rate": "5e-4",
    "gradients.anneal_updates": "1500",
}
"""Of CartPole's preset."""


@pytest.mark.timeout(400)
def test_solves_cartpole_with_one_number_a_thousand_times_as_large(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Without a normalizer it is at a return of 10 to 39 after as many steps and more."""
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath / "tests"))
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    words = ("--mode", "gradients", "--env", "large_cartpole:LargeCartPole", "--seed", "1")
    with demo(*words, *sets, "--set=training.network.normalize=true", "--timeout-s", "300") as one:
        envelope = one.finish(timeout_s=330.0)
        assert one.process.returncode == 0
    assert envelope["solved"] is True
    assert envelope["return_mean"] >= 475
    assert envelope["quantization"]["precision"] == "int8"
    assert envelope["gradients"]["updates_applied"] > 100
    assert envelope["audit"]["produced"] == 0, "no observation left a device"
