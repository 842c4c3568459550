"""Tasks in the whole system: a device is killed with one in hand, the learner too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from demo_process import DemoProcess, demo

TASKS = '[{name="pole",first_seed=0,seeds=200,steps=640},{name="end",steps=64,stage=1}]'
FLEET = ("--devices", "2", "--envs", "4", "--chunk-steps", "16", "--ahead", "1")
END = ("--until-return", "1000", "--stop-after-steps", "50000", "--timeout-s", "150")


def tasks_of(running: DemoProcess) -> list[dict[str, object]]:
    lines = (running.directory / "learner.toml").read_text().splitlines()
    port = next(line for line in lines[lines.index("[server]") :] if line.startswith("port"))
    command = [
        *(sys.executable, "-m", "shoalctl.cli", "tasks", "ls", "-o", "json", "--timeout-s", "30"),
        *("--server", f"127.0.0.1:{port.split()[-1]}"),
        *("--identity", str(running.directory / "pki" / "identities" / "operator")),
    ]
    while True:  # a learner that was killed takes a while to be there again
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            break
        assert listed.returncode == 2, listed.stderr
        assert running.process.poll() is None
    items: list[dict[str, object]] = json.loads(listed.stdout)["items"]
    return items


@pytest.mark.timeout(300)
def test_every_task_is_handed_out_and_those_of_killed_devices_again() -> None:
    with demo("--set", f"tasks={TASKS}", *FLEET, *END) as running:
        seen = running.wait_for("training")
        running.kill("device-0")
        seen = running.wait_for("training", since=seen)
        running.kill("learner")
        seen = running.wait_for("training", since=len(running.lines))
        tasks = tasks_of(running)
        while all(task["state"] != "done" for task in tasks):
            assert running.process.poll() is None, running.lines[-20:]
            tasks = tasks_of(running)
        envelope = running.finish()
    assert running.process.returncode == 0, running.lines[-20:]
    assert envelope["audit"]["balanced"] is True
    assert len(tasks) == 201
    states = [task["state"] for task in tasks]
    assert states[-1] == "closed"
    assert states.count("running") <= 3  # two devices, and what the killed one held
    begun = [n for n, state in enumerate(states) if state in ("done", "running")]
    assert begun == list(range(len(begun)))  # none was passed over
    assert "failed" not in states
