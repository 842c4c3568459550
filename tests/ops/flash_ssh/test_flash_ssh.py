"""`shoal flash ssh` over a real sshd, from a blank host to one that acts, and again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ssh_hosts import SshHost, fake_bundle, flash, items, needs_sshd

from edge_agent.slots.state import Content, Happening
from shoalctl.cli import run

pytestmark = needs_sshd
TOKEN = "0a1b2c3d.secret-secret-secret-secret-secret-secret-00"


def test_a_blank_host_acts_and_the_same_again_changes_nothing(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = fake_bundle(tmp_path / "one.tar", version="1.0")
    assert flash(host, bundle, "-o", "json") == 0
    (item,) = items(capsys.readouterr().out)
    assert item["outcome"] == "committed"
    assert item["sent_bytes"] == bundle.stat().st_size
    assert host.current.content is Content.COMMITTED
    assert "flashed over SSH by" in host.slots.history[1].reason
    assert list(host.staging.iterdir()) == []  # nothing is left of the upload
    assert not (host.prefix / "flash").exists()
    before = (host.prefix / "slots.json").read_bytes()
    assert flash(host, bundle, "-o", "json") == 0
    assert items(capsys.readouterr().out)[0]["outcome"] == "unchanged"
    assert (host.prefix / "slots.json").read_bytes() == before


def test_an_update_goes_beside_what_runs_and_the_old_slot_is_kept(
    host: SshHost, tmp_path: Path
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    assert flash(host, fake_bundle(tmp_path / "two.tar", version="2.0")) == 0
    assert host.running == "2.0"
    kept = host.slots.slot(host.slots.spare)
    assert kept.release is not None
    assert (kept.release.bundle_version, kept.content) == ("1.0", Content.COMMITTED)


def test_the_bundle_before_is_gone_back_to_without_a_second_upload(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = fake_bundle(tmp_path / "one.tar", version="1.0")
    assert flash(host, one) == 0
    assert flash(host, fake_bundle(tmp_path / "two.tar", version="2.0")) == 0
    capsys.readouterr()
    assert flash(host, one, "-o", "json") == 0
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["sent_bytes"]) == ("committed", 0)
    assert host.running == "1.0"


def test_a_bundle_whose_agent_dies_is_rolled_back_and_the_reason_is_said(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    dying = fake_bundle(tmp_path / "two.tar", version="2.0", behaviour="dies")
    capsys.readouterr()
    assert flash(host, dying, "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert item["outcome"] == "rolled_back"
    assert "it died 3 times" in item["reason"]
    assert "bundle 1.0 runs again" in item["reason"]
    assert host.running == "1.0"


def test_a_bundle_that_fails_its_health_check_is_never_switched_to(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    ill = fake_bundle(tmp_path / "two.tar", version="2.0", behaviour="health")
    capsys.readouterr()
    assert flash(host, ill, "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["step"]) == ("failed", "install")
    assert "it is ill" in item["reason"]
    assert host.running == "1.0"
    assert [entry.happening for entry in host.slots.history].count(Happening.SWITCHED) == 1


def test_a_trial_that_is_not_over_in_time_is_said_and_goes_on(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holds = fake_bundle(tmp_path / "one.tar", behaviour="holds")
    assert flash(host, holds, "--wait-s", "1", "-o", "json") == 3
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["ok"]) == ("on_trial", False)
    assert "it has not acted yet" in item["reason"]
    assert "bin/shoal-slots run` running there?" in item["reason"]
    assert host.slots.trial is not None


def test_without_waiting_a_trial_is_what_was_asked_for(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "b.tar", behaviour="holds"), "--no-wait") == 0
    assert "on_trial" in capsys.readouterr().out


def test_another_bundle_on_trial_is_not_taken_its_way_back(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    holds = fake_bundle(tmp_path / "two.tar", version="2.0", behaviour="holds")
    assert flash(host, holds, "--no-wait") == 0
    capsys.readouterr()
    assert flash(host, fake_bundle(tmp_path / "three.tar", version="3.0"), "-o", "json") == 1
    assert items(capsys.readouterr().out)[0]["refusals"] == ["on_trial"]


def test_rollback_goes_to_the_slot_before_and_says_why(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    assert flash(host, fake_bundle(tmp_path / "two.tar", version="2.0")) == 0
    capsys.readouterr()
    back = ["flash", "rollback", host.login, *host.options, "-o", "json"]
    assert run([*back, "--dry-run", "--reason", "the arm shakes"]) == 0
    (item,) = items(capsys.readouterr().out)
    assert "rollback --reason 'the arm shakes" in item["planned"][1]["command"]
    assert host.running == "2.0"
    assert run([*back, "--reason", "the arm shakes"]) == 0
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["bundle_version"]) == ("rolled_back", "1.0")
    assert host.running == "1.0"
    assert "the arm shakes" in host.slots.history[-1].reason


def test_rollback_of_a_host_without_an_agent_says_what_to_do(
    host: SshHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["flash", "rollback", host.login, *host.options]) == 1
    assert "`shoal flash ssh` installs one" in capsys.readouterr().err


def test_a_rollback_with_nothing_to_go_back_to_changes_nothing(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar", version="1.0")) == 0
    assert run(["flash", "rollback", host.login, *host.options]) == 1
    assert "nothing to go back to" in capsys.readouterr().err
    assert host.running == "1.0"


def test_a_dry_run_prints_every_step_and_changes_nothing(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    bundle = fake_bundle(tmp_path / "one.tar")
    before = sorted(host.root.rglob("*"))
    options = ("--token-file", tmp_path / "token", "--device-id", "arm-1")
    assert flash(host, bundle, *options, "--dry-run") == 0
    said = capsys.readouterr()
    assert re.findall(r"^  [0-9]+[.] ([a-z]+):", said.out, re.MULTILINE) == list(ORDER)
    assert "install.sh" in said.out
    assert TOKEN not in said.out + said.err
    assert set(host.root.rglob("*")) - set(before) <= {host.root / "sshd.log"}


ORDER = ("lock", "upload", "unpack", "token", "install", "clean", "wait")


def test_a_token_and_a_name_arrive_for_root_alone_and_are_never_said(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    bundle = fake_bundle(tmp_path / "one.tar")
    options = ("--token-file", tmp_path / "token", "--device-id", "arm-1", "-o", "json")
    assert flash(host, bundle, *options) == 0
    token = host.prefix / "state" / "enrolment-token"
    assert token.read_text() == f"{TOKEN}\n"
    assert token.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    assert json.loads((host.prefix / "etc" / "seed.json").read_text())["device"] == "arm-1"


def test_a_token_on_the_command_line_is_refused(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(host, fake_bundle(tmp_path / "one.tar"), "--token", TOKEN) == 4
    said = capsys.readouterr().err
    assert "--token-file" in said
    assert TOKEN not in said
    assert host.connections == 0


def test_a_device_that_is_enrolled_gets_no_token(host: SshHost, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    identity = host.prefix / "state" / "identity"
    identity.mkdir(parents=True)
    (identity / "cert.pem").write_text("a certificate")
    options = ("--token-file", tmp_path / "token")
    assert flash(host, fake_bundle(tmp_path / "one.tar"), *options) == 0
    assert not (host.prefix / "state" / "enrolment-token").exists()


def test_without_asyncssh_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "asyncssh", None)
    assert run(["flash", "ssh", "pi@device", "--bundle", "none.tar"]) == 4
    assert "pip install 'shoal[ops]'" in capsys.readouterr().err


def test_a_bundle_that_another_fleet_signed_reaches_no_host(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert flash(host, fake_bundle(tmp_path / "one.tar", key=other)) == 1
    assert "not signed by this fleet" in capsys.readouterr().err
    assert host.connections == 0


def test_a_tampered_bundle_reaches_no_host(host: SshHost, tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path / "one.tar")
    content = bytearray(bundle.read_bytes())
    content[-3000] ^= 1
    bundle.write_bytes(content)
    assert flash(host, bundle) == 1
    assert host.connections == 0


def test_without_the_fleets_key_the_command_says_where_it_looked(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet" / "policy.pub").unlink()
    assert flash(host, fake_bundle(tmp_path / "one.tar")) == 2
    assert "fleet/policy.pub" in capsys.readouterr().err
    assert host.connections == 0
