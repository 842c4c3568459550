"""Whole devices: the real installer and slots at their real places, each in a system of its own.

The agent in the bundles is a stand-in of a few lines, and so is systemd.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundles import KEY, manifest_of
from slot_bundles import wheel
from ssh_hosts import SshHost, items, needs_sshd, own_system, ssh_host, system_python

import edge_agent.slots
from edge_agent.slots.codec import decode
from edge_agent.slots.state import Content, State
from shoal.bundle import sign
from shoal.bundle_archive import pack
from shoalctl.cli import run

pytestmark = [
    needs_sshd,
    pytest.mark.skipif(os.geteuid() != 0, reason="a system of its own takes root"),
    pytest.mark.timeout(600),
]
EDGE = Path(__file__).parents[3] / "deploy" / "edge"
LAUNCHER = Path(str(edge_agent.slots.__file__)).parent
CONFIG = b'state_dir = "/var/lib/shoal"\n[trial]\ndeaths = 2\ndeadline_s = 120\n'
SYSTEMCTL = """
echo "$*" >>@LOG@
case "$*" in *is-enabled*) grep -q '^enable shoal-agent' @LOG@ ;; esac
"""


class Device:
    """A device in a system of its own."""

    def __init__(self, host: SshHost, inside: list[str]) -> None:
        self.host = host
        self._inside = inside
        host.pretend("systemctl", SYSTEMCTL.replace("@LOG@", str(host.root / "systemctl.log")))
        self.options = [*host.options[:4], "--wait-s", "120"]

    def read(self, path: str) -> bytes:
        """A file of it."""
        done = subprocess.run([*self._inside, "cat", path], capture_output=True, check=True)
        return done.stdout

    @property
    def slots(self) -> State:
        """What is in its slots."""
        return decode(self.read("/opt/shoal/slots.json"))

    @property
    def running(self) -> str:
        """The version that runs."""
        state = self.slots
        release = state.slot(state.current).release if state.current else None
        return release.bundle_version if release else ""

    @contextmanager
    def acting(self) -> Iterator[None]:
        """The launcher runs, as the unit would run it."""
        command = [*self._inside, "/opt/shoal/bin/shoal-slots", "run"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as launcher:
            try:
                yield
            finally:
                launcher.send_signal(signal.SIGTERM)


@contextmanager
def device(root: Path) -> Iterator[Device]:
    with own_system(root) as inside, ssh_host(root, inside=inside) as host:
        yield Device(host, inside)


def real_bundle(directory: Path, version: str, *behaviour: str) -> Path:
    """A bundle with the real launcher, installer and units, and a stand-in for the agent."""
    script = (EDGE / "install.sh").read_text()
    filled = {
        "@ARCH@": os.uname().machine,
        "@PYTHON@": system_python(),
        "@GLIBC@": "2.17",
        "@NEEDED_MB@": "50",
    }
    for mark, value in filled.items():
        script = script.replace(mark, value)
    packed = wheel(directory, version, *behaviour)
    contents = {
        "config/agent.toml": CONFIG,
        "config/policy.pub": b"00" * 32 + b"\n",
        "config/seed.json": b'{"host": "fleet.example.org", "port": 8444, "ca_fingerprint": "ab"}',
        "install.sh": script.encode(),
        f"wheels/{packed.name}": packed.read_bytes(),
        **{f"boot/{path.name}": path.read_bytes() for path in LAUNCHER.glob("*.py")},
        **{f"units/{path.name}": path.read_bytes() for path in (EDGE / "systemd").iterdir()},
    }
    manifest = manifest_of(
        contents, version=version, arch=filled["@ARCH@"], python=filled["@PYTHON@"]
    )
    path = directory / f"{version}.tar"
    with path.open("wb") as out:
        pack(out, manifest, sign(manifest, KEY), contents)
    return path


def flash(device: Device, bundle: Path, *arguments: str) -> int:
    words = [device.host.login, *device.options, "--bundle", str(bundle), *arguments]
    return run(["flash", "ssh", *words, "-o", "json"])


def test_a_blank_device_is_set_up_acts_is_updated_and_comes_back_from_a_bad_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("0a1b2c3d.secret")
    with device(tmp_path / "arm-1") as arm:
        named = ("--device-id", "arm-1", "--token-file", str(tmp_path / "token"))
        one = real_bundle(tmp_path, "1.0")
        assert flash(arm, one, *named, "--no-wait") == 0
        assert items(capsys.readouterr().out)[0]["outcome"] == "on_trial"
        assert b'"device": "arm-1"' in arm.read("/etc/shoal/seed.json")
        assert arm.read("/var/lib/shoal/enrolment-token") == b"0a1b2c3d.secret\n"
        assert b"ExecStart=/opt/shoal/bin/shoal-slots" in arm.read(
            "/etc/systemd/system/shoal-agent.service"
        )
        assert "restart shoal-agent.service" in (arm.host.root / "systemctl.log").read_text()
        with arm.acting():
            assert flash(arm, one) == 0  # goes on: it waits until the agent acted
            assert items(capsys.readouterr().out)[0]["outcome"] == "committed"
            assert flash(arm, real_bundle(tmp_path, "2.0")) == 0
            assert arm.running == "2.0"
            capsys.readouterr()
            assert flash(arm, real_bundle(tmp_path, "3.0", "dies")) == 1
            (item,) = items(capsys.readouterr().out)
            assert item["outcome"] == "rolled_back"
            assert "died 2 times" in item["reason"]
            assert flash(arm, real_bundle(tmp_path, "4.0", "unhealthy")) == 1
            (item,) = items(capsys.readouterr().out)
            assert (item["outcome"], item["step"]) == ("failed", "install")
            assert arm.running == "2.0"
        state = arm.slots
        assert state.current is not None
        assert state.slot(state.current).content is Content.COMMITTED
    assert not Path("/opt/shoal").exists()


def test_many_devices_are_flashed_at_a_time_each_with_its_own_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = real_bundle(tmp_path, "1.0")
    with device(tmp_path / "one") as one, device(tmp_path / "two") as two:
        lines = ["[bundles]", f'{os.uname().machine} = "{bundle.name}"']
        for name, each in (("arm-1", one), ("arm-2", two)):
            lines += ["[[hosts]]", f'name = "{name}"', f'host = "{each.host.login}"']
            lines += [f'device_id = "{name}"']
        (tmp_path / "fleet.toml").write_text("\n".join(lines))
        two.host.pretend("date", "echo 1000")
        known = tmp_path / "known_hosts"
        known.write_text(one.host.known_hosts.read_text() + two.host.known_hosts.read_text())
        identities = [f"--identity={each.host.client_key}" for each in (one, two)]
        words = ["--inventory", str(tmp_path / "fleet.toml"), "--known-hosts", str(known)]
        command = ["flash", "ssh", *words, *identities, "--no-wait", "-o", "json"]
        assert run(command) == 1
        said = items(capsys.readouterr().out)
        assert [item["outcome"] for item in said] == ["on_trial", "refused"]
        assert run([*command, "--allow", "clock"]) == 0
        said = items(capsys.readouterr().out)
        assert [item["outcome"] for item in said] == ["on_trial", "on_trial"]
        assert (one.running, two.running) == ("1.0", "1.0")
        assert b'"device": "arm-2"' in two.read("/etc/shoal/seed.json")
