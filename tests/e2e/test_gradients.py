"""The mode `gradients` on this machine: observations stay on devices, and devices come and go."""

from __future__ import annotations

import psutil
import pytest
from demo_process import demo


@pytest.mark.timeout(300)
def test_solves_cartpole_from_gradients_of_four_int8_devices() -> None:
    with demo("--mode", "gradients", "--shards", "4", "--seed", "1", "--timeout-s", "200") as one:
        envelope = one.finish()
        assert one.process.returncode == 0
    assert envelope["solved"] is True
    assert envelope["return_mean"] >= 475
    assert envelope["env_steps"] <= 250_000
    assert envelope["quantization"]["precision"] == "int8"
    assert envelope["gradients"]["updates_applied"] > 100
    assert envelope["audit"]["produced"] == 0
    assert envelope["audit"]["balanced"] is True
    for device in envelope["devices"]:
        digest = envelope["policy_digests"][str(device["active_version"])]
        assert device["active_digest"] == digest
        assert device["swaps"] > 1


@pytest.mark.timeout(400)
def test_goes_on_while_devices_leave_and_join_and_the_learner_is_killed() -> None:
    with demo("--mode", "gradients", "--seed", "2", "--timeout-s", "300") as running:
        running.wait_for("training")
        left = psutil.Process(running.pid_of("device-2"))
        for process in [*left.children(recursive=True), left]:
            process.suspend()  # it left without a word; at its end the demo kills it
        for victim in ("device-1", "learner", "device-1", "device-3"):
            running.kill(victim)  # one is lost, and another run joins
            running.wait_for("training", since=len(running.lines))
        envelope = running.finish()
        assert running.process.returncode == 0
    assert envelope["restarts"] == {"device-1": 2, "device-3": 1, "learner": 1}
    assert envelope["solved"] is True
    assert envelope["audit"]["balanced"] is True
