"""The client dies, or Ctrl-C comes, at every step: a working agent stays, and the rest is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_hosts import SshHost, fake_bundle, flash, items, needs_sshd

from edge_agent.slots.state import Content
from shoalctl.flash.ssh.host_progress import TITLES
from shoalctl.flash.ssh.plan import Step

pytestmark = needs_sshd
STEPS = (
    Step.LOCK,
    Step.UPLOAD,
    Step.UNPACK,
    Step.INSTALL,
    Step.SWITCH,
    Step.CLEAN,
    Step.WAIT,
)
CASES = [
    *((step, signal.SIGKILL) for step in STEPS),
    *((step, signal.SIGINT) for step in (Step.CONNECT, Step.UPLOAD, Step.INSTALL, Step.WAIT)),
]


def run_until(host: SshHost, bundle: Path, step: Step, number: signal.Signals) -> tuple[int, str]:
    """Starts a flash, and sends it a signal when a step begins; its code and its stdout."""
    words = ["flash", "ssh", host.login, *host.options, "--bundle", str(bundle), "-o", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "shoalctl.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if line.strip().endswith(f": {TITLES[step]}"):
                process.send_signal(number)
                break
        process.stderr.read()
        return process.wait(), process.stdout.read()


def has_a_working_agent(host: SshHost) -> bool:
    state = host.slots
    content = host.current.content
    return content is Content.COMMITTED or (
        state.trial is not None and state.fallback is not None and content is Content.INSTALLED
    )


@pytest.mark.parametrize(("step", "number"), CASES)
def test_a_client_that_ends_at_any_step_leaves_an_agent_and_goes_on_the_next_time(
    step: Step, number: signal.Signals, host: SshHost, tmp_path: Path
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    bundle = fake_bundle(tmp_path / "two.tar", version="2.0", size=3 << 20)
    code, output = run_until(host, bundle, step, number)
    assert has_a_working_agent(host)
    if number is signal.SIGINT and code == 130:
        envelope = json.loads(output)
        assert envelope["interrupted"]
        assert envelope["items"][0]["outcome"] in {"interrupted", "committed"}
    assert flash(host, bundle) == 0
    assert (host.running, host.current.content) == ("2.0", Content.COMMITTED)
    assert not (host.prefix / "flash").exists()


@pytest.mark.parametrize("step", [Step.UPLOAD, Step.UNPACK, Step.INSTALL])
def test_a_first_installation_that_is_cut_off_is_done_the_next_time(
    step: Step, host: SshHost, tmp_path: Path
) -> None:
    bundle = fake_bundle(tmp_path / "one.tar", version="1.0", size=3 << 20)
    run_until(host, bundle, step, signal.SIGKILL)
    assert flash(host, bundle) == 0
    assert (host.running, host.current.content) == ("1.0", Content.COMMITTED)


def test_a_host_that_another_flash_works_on_is_refused_and_says_who(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    capsys.readouterr()
    holder = (
        "import fcntl, sys; lock = open(sys.argv[1], 'r+'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "lock.write('ann@desk'); lock.flush(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(host.prefix / "flash.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        bundle = fake_bundle(tmp_path / "two.tar", version="2.0")
        assert flash(host, bundle, "-o", "json") == 1
        (item,) = items(capsys.readouterr().out)
        assert item["refusals"] == ["locked"]
        assert "ann@desk" in item["reason"]
        process.communicate()
    assert flash(host, bundle) == 0
