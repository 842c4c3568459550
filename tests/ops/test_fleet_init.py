"""`shoal fleet init`: a fleet in one directory, whole or not at all."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from cloud_learner.config import LearnerConfig
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.identity import Identity
from shoal.revocation import RevocationList
from shoalctl.broker.broker import BrokerConfig
from shoalctl.cli import run
from shoalctl.enrollment.config import load_enrollment
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki, Role


def modes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
        for path in (directory, *directory.rglob("*"))
    }


def test_a_fleet_has_keys_identities_and_configurations_that_load(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    pki = make_fleet(directory, FleetPlan("reef", ("fleet.example.org", "10.0.0.7")))
    for name in ("learner", "broker", "server", "operator"):
        identity = Identity.load(directory / "identities" / name)
        assert identity.policy_public_key == pki.policy_public_key
    broker = load_config(BrokerConfig, directory / "broker.toml", environ={})
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    enrollment = load_enrollment(directory)
    assert broker.fleet == learner.fleet == enrollment.fleet == "reef"
    assert broker.registry.path == enrollment.devices_file
    assert enrollment.addresses.broker == "fleet.example.org:8883"
    assert learner.server.revocation_list is not None
    chain = (directory / "intermediate.pem").read_bytes()
    crl = learner.server.revocation_list.read_bytes()
    assert RevocationList.read(crl, chain=chain).serials == frozenset()


def test_ports_are_chosen_and_all_files_agree_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "fleet"
    ports = ("--broker-port", "18883", "--server-port", "15051", "--enrollment-port", "18444")
    assert run(["fleet", "init", "reef", "--dir", str(directory), *ports]) == 0
    broker = load_config(BrokerConfig, directory / "broker.toml", environ={})
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    addresses = load_enrollment(directory).addresses
    assert (broker.port, learner.broker.port, learner.server.port) == (18883, 18883, 15051)
    told = (addresses.broker, addresses.parameter_server, addresses.enrollment)
    assert [each.rpartition(":")[2] for each in told] == ["18883", "15051", "18444"]
    capsys.readouterr()
    twice = ("--broker-port", "18883", "--server-port", "18883")
    assert run(["fleet", "init", "reef", "--dir", str(tmp_path / "other"), *twice]) == 4
    assert "a port of its own" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_only_the_owner_may_look_into_a_fleet_and_keys_are_his_alone(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    make_fleet(directory, FleetPlan("reef"))
    found = modes(directory)
    assert found["."] == 0o700
    secret = {name: mode for name, mode in found.items() if name.endswith((".key", "key.pem"))}
    assert len(secret) == 3 + 4 + 1
    assert set(secret.values()) == {0o600}


def test_the_keys_of_root_and_policies_can_lie_elsewhere_and_daily_work_goes_on(
    tmp_path: Path,
) -> None:
    directory, safe = tmp_path / "fleet", tmp_path / "safe"
    made = make_fleet(directory, FleetPlan("reef"), offline=safe)
    assert sorted(path.name for path in safe.iterdir()) == [
        *("ca.key", "ca.pem", "policy.generation", "policy.key")
    ]
    root = (safe / "policy.key").read_bytes()
    assert modes(safe)["."] == 0o700
    assert {modes(safe)["ca.key"], modes(safe)["policy.key"]} == {0o600}
    assert not (directory / "ca.key").exists()
    # The key that devices trust is nowhere in it: the learner has a delegate.
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name == "policy.key" or root in path.read_bytes()]
    assert (directory / "identities" / "learner" / "delegate.key") in files
    for path in safe.iterdir():
        path.unlink()
    pki = FleetPki.load(directory)
    assert pki.policy_public_key == made.policy_public_key
    identity = Identity.load(pki.issue("pi-1", Role.DEVICE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(identity.directory / "ca.pem")
    with pytest.raises(ConfigError, match=r"has no policy\.key.*--policy-key"):
        pki.issue("learner", Role.LEARNER, directory=tmp_path / "learner")


def test_nothing_is_overwritten_and_nothing_is_left_when_it_fails(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    make_fleet(directory, FleetPlan("reef"))
    before = (directory / "ca.pem").read_bytes()
    with pytest.raises(ConfigError, match="not empty: nothing there is overwritten"):
        make_fleet(directory, FleetPlan("reef"))
    with pytest.raises(ConfigError, match="fleet name"):
        make_fleet(tmp_path / "other", FleetPlan("Re Ef"))
    with pytest.raises(ConfigError, match="not a host name"):
        make_fleet(tmp_path / "other", FleetPlan("reef", ("a b",)), offline=tmp_path / "safe")
    assert (directory / "ca.pem").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["fleet"]


@pytest.mark.parametrize("offline", ["fleet", "fleet/safe", "."])
def test_the_offline_directory_is_apart_from_the_fleets(tmp_path: Path, offline: str) -> None:
    with pytest.raises(ConfigError, match="apart"):
        make_fleet(tmp_path / "fleet", FleetPlan("reef"), offline=tmp_path / offline)


def test_a_fleets_directory_may_be_moved(tmp_path: Path) -> None:
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    (tmp_path / "fleet").rename(tmp_path / "moved")
    config = load_enrollment(tmp_path / "moved")
    assert Identity.load(config.identity).name == "server"


def test_the_command_says_where_the_fleet_is_and_what_devices_pin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "fleet")
    assert run(["fleet", "init", "reef", "--dir", directory]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == directory
    fingerprint = FleetPki.load(tmp_path / "fleet").fingerprint
    assert fingerprint in said.err
    assert "carry it away" not in said.err
    assert run(["enroll", "fingerprint", "--fleet", directory]) == 0
    assert capsys.readouterr().out.strip() == fingerprint


def test_the_command_says_what_to_carry_away_and_what_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, safe = tmp_path / "fleet", tmp_path / "safe"
    words = ["fleet", "init", "reef", "--dir", str(directory), "--offline-root", str(safe)]
    assert run(words) == 0
    said = capsys.readouterr().err
    assert f"ca.key and policy.key are in {safe}: carry it away" in said
    assert f"In {directory} remain the intermediate, and a delegate" in said
    assert "shoal pki delegate" in said


def test_tokens_are_made_listed_and_taken_back_and_their_secrets_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "fleet")
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    assert run(["enroll", "token", "create", "--device", "pi-1", "--dir", directory]) == 0
    token_id, _, secret = capsys.readouterr().out.strip().partition(".")
    assert run(["enroll", "token", "ls", "--fleet", directory]) == 0
    assert f"{token_id}  valid  pi-1" in capsys.readouterr().out
    assert run(["enroll", "token", "revoke", token_id, "--dir", directory]) == 0
    assert run(["enroll", "token", "ls", "--fleet", directory]) == 0
    assert "revoked" in capsys.readouterr().out
    kept = [path.read_bytes() for path in (tmp_path / "fleet").glob("enrollment.sqlite*")]
    assert not any(secret.encode() in each for each in kept)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("token", "create", "--ttl", "soon"), "--ttl"),
        (("token", "create", "--device", "learner"), "reserved"),
        (("token", "create", "--device", "pi-1", "--uses", "2"), "--uses"),
        (("token", "create", "--replace"), "--replace needs --device"),
        (("token", "revoke", "0badcafe"), "no token"),
        (("approve", "pi-1"), "enroll requests"),
        (("deny", "pi-1"), "enroll requests"),
        (("revoke", "pi-1", "--certificate", "/nowhere.pem"), "not a certificate"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], part: str
) -> None:
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    assert run(["enroll", *arguments, "--dir", str(tmp_path / "fleet")]) == 4
    said = capsys.readouterr()
    assert part in said.err
    assert said.out == ""


def test_without_a_fleet_the_commands_say_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["enroll", "ls", "--dir", str(tmp_path / "nowhere")]) == 4
    assert "shoal fleet init" in capsys.readouterr().err
