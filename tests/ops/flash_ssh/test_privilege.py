"""Becoming root: sudo without a password, sudo with one that a person types, and neither."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ssh_hosts import SshHost, fake_bundle, flash, items, needs_sshd

pytestmark = needs_sshd
PASSWORD = "correct horse"

NOT_ROOT = """
case "$*" in
  -u) echo 1000 ;;
  -un) echo pi ;;
  *) exec /usr/bin/id "$@" ;;
esac
"""
# As root it is told so: `id` of the host is a stand-in, too.
SUDO = """
log=@LOG@
echo "$*" | head -c 60 | head -n 1 >>"$log"
ask=
while :; do
  case "$1" in
    -n) [ -z "@PASSWORD@" ] || { echo "sudo: a password is required" >&2; exit 1; }; shift ;;
    -k) shift ;;
    -S) ask=1; shift ;;
    -p) shift 2 ;;
    *) break ;;
  esac
done
if [ -n "$ask" ]; then
  IFS= read -r typed
  [ "$typed" = "@PASSWORD@" ] || { echo "sudo: 1 incorrect password attempt" >&2; exit 1; }
fi
PATH=$(echo "$PATH" | cut -d: -f2-) exec "$@"
"""


def with_sudo(host: SshHost, password: str = "") -> None:
    host.pretend("id", NOT_ROOT)
    log = str(host.root / "sudo.log")
    host.pretend("sudo", SUDO.replace("@LOG@", log).replace("@PASSWORD@", password))


def test_sudo_without_a_password_is_used_for_what_needs_root(host: SshHost, tmp_path: Path) -> None:
    with_sudo(host)
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    assert host.running == "1.0"
    asked = (host.root / "sudo.log").read_text()
    assert "-n sh -c" in asked


def test_sudo_that_asks_is_refused_where_nobody_can_type(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_sudo(host, PASSWORD)
    assert flash(host, fake_bundle(tmp_path / "one.tar"), "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert item["refusals"] == ["privilege"]
    assert "at a terminal" in item["reason"]


def test_a_user_without_sudo_is_refused(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.pretend("id", NOT_ROOT)
    host.pretend("sudo", "exit 1")
    assert flash(host, fake_bundle(tmp_path / "one.tar"), "-o", "json") == 1
    assert items(capsys.readouterr().out)[0]["refusals"] == ["privilege"]


def at_terminal(host: SshHost, bundle: Path, *typed: str) -> tuple[int, str]:
    """Flashes at a terminal, typing an answer to each question; its code and what was shown."""
    words = ["flash", "ssh", host.login, *host.options, "--bundle", str(bundle)]
    leader, follower = pty.openpty()
    shown, answers = b"", list(typed)
    with subprocess.Popen(
        [sys.executable, "-m", "shoalctl.cli", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(follower)
        deadline = time.monotonic() + 90
        asked = 0
        while time.monotonic() < deadline and select.select([leader], [], [], 90)[0]:
            try:
                shown += os.read(leader, 4096)
            except OSError:
                break
            if shown.count(b"for sudo: ") > asked and answers:
                asked += 1
                os.write(leader, f"{answers.pop(0)}\n".encode())
        os.close(leader)
        return process.wait(timeout=30), shown.decode()


def test_a_password_typed_at_a_terminal_is_asked_once_and_never_shown(
    host: SshHost, tmp_path: Path
) -> None:
    with_sudo(host, PASSWORD)
    code, shown = at_terminal(host, fake_bundle(tmp_path / "one.tar", version="1.0"), PASSWORD)
    assert code == 0, shown
    assert host.running == "1.0"
    assert shown.count("for sudo: ") == 1
    assert PASSWORD not in shown
    assert "committed" in shown


def test_a_wrong_password_is_asked_for_three_times(host: SshHost, tmp_path: Path) -> None:
    with_sudo(host, PASSWORD)
    code, shown = at_terminal(host, fake_bundle(tmp_path / "one.tar"), "no", "nor this", "nor that")
    assert code == 2, shown
    assert shown.count("for sudo: ") == 3
    assert not host.prefix.exists()
