"""Host keys over a real sshd: unknown, changed, accepted one at a time; nothing is sent before."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest
from ssh_hosts import HOST, SshHost, fake_bundle, flash, needs_sshd

from shoal.errors import ConfigError
from shoalctl.cli import run
from shoalctl.flash.ssh.host_keys import KnownHosts

pytestmark = needs_sshd


def fingerprint(host: SshHost) -> str:
    return asyncssh.read_private_key(host.root / "host_key").get_fingerprint("sha256")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return fake_bundle(tmp_path / "one.tar")


def test_an_unknown_host_is_refused_and_told_how_it_is_accepted(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.known_hosts.unlink()
    assert flash(host, bundle) == 2
    said = capsys.readouterr().err
    assert f"--accept-host-key {fingerprint(host)}" in said
    assert not host.prefix.exists()
    assert not host.staging.exists()


def test_the_fingerprint_that_is_shown_accepts_the_host_for_good(
    host: SshHost, bundle: Path
) -> None:
    host.known_hosts.write_text("other ssh-ed25519 AAAA")  # without an end of line
    host.known_hosts.write_text("")
    assert flash(host, bundle, "--accept-host-key", fingerprint(host)) == 0
    assert host.known_hosts.read_text().startswith(f"[{HOST}]:{host.port} ssh-ed25519 ")
    assert flash(host, bundle) == 0


def test_another_fingerprint_than_the_hosts_accepts_nothing(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.known_hosts.write_text("")
    other = asyncssh.generate_private_key("ssh-ed25519").get_fingerprint("sha256")
    assert flash(host, bundle, "--accept-host-key", other) == 2
    assert host.known_hosts.read_text() == ""
    assert fingerprint(host) in capsys.readouterr().err


def test_a_changed_key_is_refused_loudly_and_no_flag_accepts_it(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode()
    line = f"[{HOST}]:{host.port} {' '.join(other.split()[:2])}\n"
    host.known_hosts.write_text(line)
    assert flash(host, bundle, "--accept-host-key", fingerprint(host)) == 2
    said = capsys.readouterr().err
    assert "HAS CHANGED" in said
    assert fingerprint(host) in said
    assert "ssh-keygen -R" in said
    assert host.known_hosts.read_text() == line
    assert not host.prefix.exists()


def test_a_revoked_key_is_refused(host: SshHost, bundle: Path) -> None:
    line = host.known_hosts.read_text()
    host.known_hosts.write_text(f"@revoked {line}")
    assert flash(host, bundle) == 2


def test_one_host_is_accepted_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    accept = f"SHA256:{'A' * 43}"
    words = ["flash", "ssh", "pi@one", "pi@two", "--bundle", "b.tar", "--accept-host-key", accept]
    assert run(words) == 4
    assert "one host at a time" in capsys.readouterr().err


def test_what_is_no_fingerprint_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssh-keygen -lf"):
        KnownHosts.load(tmp_path / "known_hosts", accept="yes")


def test_the_key_of_one_port_is_not_that_of_another(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = " ".join(key.export_public_key("openssh").decode().split()[:2])
    (tmp_path / "known_hosts").write_text(f"device {public}\n[device]:2222 {public}\n")
    known = KnownHosts.load(tmp_path / "known_hosts")
    found = {port: len(known.match("device", "10.0.0.4", port)[0]) for port in (22, 2222, 2223)}
    assert found == {22: 1, 2222: 1, 2223: 0}


def test_a_key_is_added_on_a_line_of_its_own(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    path = tmp_path / "known_hosts"
    public = " ".join(key.export_public_key("openssh").decode().split()[:2])
    path.write_text(f"other {public}")
    known = KnownHosts.load(path, accept=key.get_fingerprint("sha256"))
    assert known.check("device", 22, key) is None
    assert path.read_text() == f"other {public}\ndevice {public}\n"


def test_a_host_that_lets_us_not_in_says_what_to_do(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.root / "authorized_keys").write_text("")
    assert flash(host, bundle) == 2
    said = capsys.readouterr().err
    assert "ssh-copy-id" in said
    assert "without a terminal" in said


def test_a_host_that_is_not_there_is_one_line_and_exit_code_2(
    host: SshHost, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["flash", "ssh", f"{HOST}:1", *host.options, "--bundle", str(bundle)]
    assert run(words) == 2
    assert "can't reach" in capsys.readouterr().err
