"""What the unit executes: it starts, hears, watches and counts; a power blip isn't a bad policy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slot_device import LONG_S, Manager, SlotDevice, make_device, on_trial

from edge_agent.slots.state import Content, Happening, Name

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path)
    yield found
    found.close()


def trying(tmp_path: Path, *behaviour: str, **trial: float) -> SlotDevice:
    return on_trial(make_device(tmp_path / "device", trial), *behaviour)


def test_a_slot_on_trial_is_committed_once_its_agent_says_that_it_acted(tmp_path: Path) -> None:
    device = trying(tmp_path)
    with device.run() as launcher:
        launcher.wait_for_line("slot b is committed", timeout_s=LONG_S)
    state = device.store.read()
    assert (state.current, state.trial) == (Name.B, None)
    assert "acted 3 episodes" in state.history[-1].reason
    assert not device.layout.acted.exists()


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("dies", "code 5"), ("leaves", "nobody asked it to"), ("hangs", "hung")],
)
def test_an_agent_that_keeps_dying_on_trial_is_left_for_the_slot_before(
    tmp_path: Path, behaviour: str, said: str
) -> None:
    device = trying(tmp_path, behaviour, "idle")
    with device.run("--watchdog-s", "2") as launcher:
        launcher.wait_for_line("slot a: started", timeout_s=LONG_S)
    state = device.store.read()
    assert state.current is Name.A
    assert state.slot(Name.B).content is Content.CONDEMNED
    assert said in state.history[-1].reason
    assert os.readlink(device.layout.current) == "slots/a"  # noqa: PTH115 the text


def test_an_agent_that_runs_and_never_acts_has_its_time_and_is_left(tmp_path: Path) -> None:
    device = trying(tmp_path, "idle", deadline_s=2)
    with device.run() as launcher:
        launcher.wait_for_line("slot a: started", timeout_s=LONG_S)
    state = device.store.read()
    assert state.history[-1].happening is Happening.ROLLED_BACK
    assert "did not act 3 episodes" in state.history[-1].reason


def test_no_policy_because_the_cloud_is_away_holds_and_never_rolls_back(
    tmp_path: Path, manager: Manager
) -> None:
    device = trying(tmp_path, "held", deadline_s=1)
    with device.run(listener=manager.address) as launcher:
        launcher.wait_for_line("held: no policy", timeout_s=LONG_S)
        manager.wait_for("WATCHDOG=1", times=5)  # as many seconds of a time of one
    assert device.store.read().current is Name.B
    assert device.store.read().trial is not None


def test_systemd_hears_that_the_agent_is_up_how_it_is_and_that_it_goes_on(
    tmp_path: Path, manager: Manager
) -> None:
    device = trying(tmp_path)
    with device.run("--once", listener=manager.address) as launcher:
        for said in ("READY=1", "STATUS=acting", "WATCHDOG=1"):
            manager.wait_for(said)
        assert launcher.stop() == 0
    manager.wait_for("STOPPING=1")


def test_under_systemd_the_exit_code_says_what_became_of_the_agent(tmp_path: Path) -> None:
    device = trying(tmp_path, "dies")
    for deaths in (1, 2):
        assert subprocess.run(device.command("begin"), check=False).returncode == 0
        with device.run("--once") as launcher:
            launcher.wait_for_line("ended", timeout_s=LONG_S)
            assert launcher.wait() == 5
        told = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "5"}
        done = subprocess.run(device.command("ended"), env=os.environ | told, check=False)
        assert done.returncode == 0
        trial = device.store.read().trial
        assert trial is not None
        assert trial.deaths == deaths


def test_a_killed_launcher_takes_its_agent_along(tmp_path: Path) -> None:
    device = trying(tmp_path, "silent")
    acts = device.layout.state_dir / "acts.txt"
    with device.run() as launcher:
        launcher.wait_for_line("started", timeout_s=LONG_S)
        started = next(line for line in launcher.lines if "started" in line)
        agent = int(started.rpartition(" ")[2])
        watched = os.pidfd_open(agent)
        launcher.signal(signal.SIGKILL)
        launcher.wait()
        import select

        ready, _, _ = select.select([watched], [], [], LONG_S)
        os.close(watched)
        assert ready, "the agent outlived its launcher"
    assert not acts.exists() or acts.read_text()


def test_a_device_that_is_no_member_yet_enrols_before_it_acts(tmp_path: Path) -> None:
    device = trying(tmp_path)
    seed = {"schema": 1, "host": "fleet.example", "port": 8444, "ca_fingerprint": "ab" * 32}
    device.layout.seed.write_text(json.dumps(seed))
    with device.run() as launcher:
        launcher.wait_for_line("slot b is committed", timeout_s=LONG_S)
    assert (device.layout.identity / "cert.pem").exists()


def test_a_state_file_that_is_lost_or_damaged_leaves_an_agent(tmp_path: Path) -> None:
    device = trying(tmp_path)
    for name, digit in ((Name.A, "1"), (Name.B, "2")):
        table = {"schema": 1, "version": f"{digit}.0", "shoal_version": "0.1.0", "files": []}
        device.layout.manifest(name).write_text(json.dumps(table))
    device.layout.state_file.write_bytes(b"\0" * 100)
    with device.run() as launcher:
        launcher.wait_for_line("slot b is committed", timeout_s=LONG_S)
    happened = [entry.happening for entry in device.store.read().history]
    assert Happening.RECOVERED in happened


def test_nothing_installed_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    device = make_device(tmp_path / "device")
    done = subprocess.run(
        device.command("run", "--once"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "setup" in done.stderr
    wrong = subprocess.run(device.command("dance"), capture_output=True, text=True, check=False)
    assert wrong.returncode == 4
    assert "Traceback" not in wrong.stderr
