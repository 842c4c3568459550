"""Many hosts at a time: from an inventory, each with its own outcome, and none stops another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import KEY
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ssh_hosts import SshHost, fake_bundle, items, needs_sshd, ssh_host

from edge_agent.slots.state import Content
from shoal.errors import ConfigError
from shoalctl.cli import run
from shoalctl.enrollment.config import load_enrollment
from shoalctl.enrollment.store import EnrollmentStore
from shoalctl.enrollment.tokens import parse_token
from shoalctl.flash.ssh.tokens import FleetTokens
from shoalctl.pki.key_files import read_policy_key

pytestmark = needs_sshd
NAMES = ("arm-1", "arm-2", "leg-1")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, SshHost]]:
    with (
        ssh_host(tmp_path / "arm-1") as one,
        ssh_host(tmp_path / "arm-2") as two,
        ssh_host(tmp_path / "leg-1") as three,
    ):
        yield dict(zip(NAMES, (one, two, three), strict=True))


def inventory(directory: Path, hosts: dict[str, SshHost], bundle: Path) -> Path:
    arch = __import__("os").uname().machine
    lines = ["[bundles]", f'{arch} = "{bundle.name}"']
    for name, host in hosts.items():
        kind = name.partition("-")[0]
        lines += ["[[hosts]]", f'name = "{name}"', 'host = "127.0.0.1"', f"port = {host.port}"]
        lines += [f'device_id = "{name}"', f'labels = {{ kind = "{kind}" }}']
    path = directory / "fleet.toml"
    path.write_text("\n".join(lines))
    return path


def options(hosts: dict[str, SshHost], directory: Path) -> list[str]:
    """One key for all of them, and one place on each: they share this machine's file system."""
    keys, public = directory / "known_hosts", directory / "authorized"
    keys.write_text("".join(host.known_hosts.read_text() for host in hosts.values()))
    first = next(iter(hosts.values()))
    public.write_text((first.root / "authorized_keys").read_text())
    for host in hosts.values():
        (host.root / "authorized_keys").write_text(public.read_text())
    return ["--identity", str(first.client_key), "--known-hosts", str(keys), "--no-systemd"]


def flash_all(
    tmp_path: Path, hosts: dict[str, SshHost], *arguments: str, key: Ed25519PrivateKey = KEY
) -> int:
    """Flashes hosts whose prefix is one directory, which each sees as its own."""
    bundle = fake_bundle(tmp_path / "one.tar", version="1.0", key=key)
    path = inventory(tmp_path, hosts, bundle)
    words = ["flash", "ssh", "--inventory", str(path), *options(hosts, tmp_path), *arguments]
    return run([*words, "-o", "json"])


def test_one_host_that_fails_does_not_stop_the_others(
    hosts: dict[str, SshHost], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts["arm-2"].pretend("uname", "echo riscv64")
    (hosts["leg-1"].root / "authorized_keys").write_text("")
    code = flash_all(tmp_path, hosts, "--prefix", "/nowhere", "--dry-run", "--parallel", "2")
    said = capsys.readouterr()
    outcomes = {item["name"]: item["outcome"] for item in items(said.out)}
    assert code == 1
    assert outcomes == {"arm-1": "planned", "arm-2": "refused", "leg-1": "planned"}
    assert "shoal: arm-2: " in said.err


def test_a_limit_leaves_the_others_alone(
    hosts: dict[str, SshHost], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "opt"
    limit = ("--prefix", str(prefix), "--limit", "kind=leg")
    assert flash_all(tmp_path, hosts, *limit) == 0
    (item,) = items(capsys.readouterr().out)
    assert (item["name"], item["outcome"]) == ("leg-1", "committed")
    assert [host.connections for host in hosts.values()] == [0, 0, 1]
    seed = json.loads((prefix / "etc" / "seed.json").read_text())
    assert seed["device"] == "leg-1"


def test_each_host_reports_its_own_bundle_and_all_are_flashed(
    hosts: dict[str, SshHost], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {name: hosts[name] for name in NAMES[:2]}
    logins = options(two, tmp_path)
    bundle = fake_bundle(tmp_path / "two.tar", version="2.0")
    for host in two.values():
        words = [host.login, "--prefix", str(host.prefix), "--bundle", str(bundle)]
        assert run(["flash", "ssh", *words, *logins, "-o", "json"]) == 0
        assert items(capsys.readouterr().out)[0]["bundle_version"] == "2.0"
        assert host.current.content is Content.COMMITTED


def test_one_token_a_device_is_made_when_it_is_needed(tmp_path: Path) -> None:
    assert run(["fleet", "init", "reef", "--dir", str(tmp_path / "reef")]) == 0
    tokens = FleetTokens(tmp_path / "reef", clock=lambda: 1_800_000_000.0)
    token = parse_token(tokens.token_for("arm-1"))
    assert token is not None
    with EnrollmentStore(load_enrollment(tmp_path / "reef").database) as store:
        (record,) = store.tokens()
    assert (record.id, record.device_id, record.uses) == (token.id, "arm-1", 1)
    with pytest.raises(ConfigError):
        tokens.token_for("Not a name")


def test_a_fleets_token_reaches_its_device(
    hosts: dict[str, SshHost], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "init", "reef", "--dir", str(tmp_path / "reef")]) == 0
    capsys.readouterr()
    prefix = tmp_path / "opt"
    words = ("--prefix", str(prefix), "--limit", "arm-1", "--fleet", str(tmp_path / "reef"))
    assert flash_all(tmp_path, hosts, *words) == 1  # it is signed by another fleet
    assert hosts["arm-1"].connections == 0
    key = read_policy_key(tmp_path / "reef" / "policy.key")
    assert key is not None
    assert flash_all(tmp_path, hosts, *words, key=key) == 0
    token = parse_token((prefix / "state" / "enrolment-token").read_text())
    assert token is not None
    with EnrollmentStore(load_enrollment(tmp_path / "reef").database) as store:
        assert [record.device_id for record in store.tokens()] == ["arm-1"]
    said = capsys.readouterr()
    assert token.secret not in said.out + said.err
