"""Devices come and go while the whole system runs, and nobody waits for one that is lost."""

from __future__ import annotations

import pytest
from demo_process import demo

FLEET = ("--devices", "3", "--envs", "4", "--chunk-steps", "16", "--ahead", "1")
END = ("--until-return", "1000", "--stop-after-steps", "12000", "--timeout-s", "150")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", [(), ("--sync",)], ids=["async", "sync"])
def test_devices_are_killed_and_join_again_and_training_goes_on(mode: tuple[str, ...]) -> None:
    with demo(*mode, *FLEET, *END) as running:
        running.wait_for("training")
        for name in ("device-0", "device-1", "device-0"):
            running.kill(name)
        envelope = running.finish()
    assert running.process.returncode == 0, running.lines[-20:]
    assert envelope["ended"] == "steps"
    assert envelope["restarts"] == {"device-0": 2, "device-1": 1}
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert audit["rejected"] == 0
    assert envelope["lag"]["max"] == 0 or not mode
