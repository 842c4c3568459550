"""A learner that cannot keep up: devices make what it uses, and every chunk is counted."""

from __future__ import annotations

import pytest
from demo_process import demo

SLOW = ("--set", "training.settings.epochs=16", "--max-lag", "128", "--ahead", "0")
FLEET = ("--devices", "2", "--envs", "8", "--chunk-steps", "32")
END = ("--until-return", "1000", "--stop-after-steps", "60000", "--timeout-s", "150")


@pytest.mark.timeout(240)
def test_devices_that_never_wait_make_what_a_slow_learner_uses() -> None:
    with demo(*SLOW, *FLEET, *END) as running:
        envelope = running.finish()
    assert running.process.returncode == 0, running.lines[-20:]
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert audit["trained"] > audit["produced"] / 2
    assert envelope["lag"]["max"] <= 128
