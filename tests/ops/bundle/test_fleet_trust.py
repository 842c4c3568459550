"""What of a fleet goes into a bundle, and the key that signs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.errors import ConfigError, IdentityError
from shoalctl.flash.bundle.fleet_trust import FleetTrust
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki


@pytest.fixture
def fleet(tmp_path: Path) -> FleetPki:
    return make_fleet(tmp_path / "fleet", FleetPlan("reef", ("fleet.example.org",)))


def test_a_fleets_directory_says_all_that_devices_need(fleet: FleetPki) -> None:
    said: list[str] = []
    trust = FleetTrust.load(fleet.directory, warn=said.append)
    assert (trust.fleet, trust.fingerprint) == ("reef", fleet.fingerprint)
    assert str(trust.enrollment) == "fleet.example.org:8444"
    assert str(trust.broker) == "fleet.example.org:8883"
    assert str(trust.parameter_server) == "fleet.example.org:50051"
    assert trust.signing_key.public_key().public_bytes_raw() == fleet.policy_public_key
    assert said == []
    assert "signing_key" not in repr(trust)


def test_a_fleet_that_only_this_machine_reaches_is_packed_with_a_warning(tmp_path: Path) -> None:
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    said: list[str] = []
    assert FleetTrust.load(tmp_path / "fleet", warn=said.append).enrollment.port == 8444
    assert "only this machine" in said[0]


def test_the_learners_copy_signs_where_the_first_is_kept_offline(tmp_path: Path) -> None:
    plan = FleetPlan("reef", ("fleet.example.org",))
    pki = make_fleet(tmp_path / "fleet", plan, offline=tmp_path / "safe")
    assert not (pki.directory / "policy.key").exists()
    # A fleet from before delegates: its learner has a copy.
    copy = pki.directory / "identities/learner/policy.key"
    shutil.copy(tmp_path / "safe/policy.key", copy)
    expected = FleetTrust.load(pki.directory).signing_key.private_bytes_raw()
    trust = FleetTrust.load(pki.directory, policy_key=tmp_path / "safe/policy.key")
    assert trust.signing_key.private_bytes_raw() == expected


def test_a_delegate_signs_no_bundle_and_the_policy_key_is_asked_for(tmp_path: Path) -> None:
    plan = FleetPlan("reef", ("fleet.example.org",))
    pki = make_fleet(tmp_path / "fleet", plan, offline=tmp_path / "safe")
    with pytest.raises(IdentityError, match="--policy-key"):
        FleetTrust.load(pki.directory)
    delegate = pki.directory / "identities/learner/delegate.key"
    with pytest.raises(IdentityError, match=r"give the fleet's policy\.key"):
        FleetTrust.load(pki.directory, policy_key=delegate)
    trust = FleetTrust.load(pki.directory, policy_key=tmp_path / "safe/policy.key")
    assert trust.public_key == pki.policy_public_key


def test_another_fleets_key_does_not_sign(fleet: FleetPki, tmp_path: Path) -> None:
    other = make_fleet(tmp_path / "other", FleetPlan("reef", ("fleet.example.org",)))
    with pytest.raises(IdentityError, match="is not the key of"):
        FleetTrust.load(fleet.directory, policy_key=other.directory / "policy.key")


def test_a_key_that_others_may_read_does_not_sign(fleet: FleetPki) -> None:
    (fleet.directory / "policy.key").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        FleetTrust.load(fleet.directory)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.pem", None, "No such file"),
        ("ca.pem", "x", "damaged"),
        ("policy.pub", None, "policy.pub"),
        ("policy.pub", "zz", "damaged"),
        ("policy.pub", "00", "32 bytes"),
        ("policy.key", "zz", "can't be read as a signing key"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    name: str, content: str | None, words: str, fleet: FleetPki
) -> None:
    (fleet.directory / name).unlink()
    if content is not None:
        (fleet.directory / name).write_text(content)
        (fleet.directory / name).chmod(0o600)
    with pytest.raises(IdentityError, match=words):
        FleetTrust.load(fleet.directory)


def test_what_is_no_fleets_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shoal fleet init"):
        FleetTrust.load(tmp_path)


def test_a_fleet_without_addresses_says_which_is_missing(fleet: FleetPki) -> None:
    path = fleet.directory / "enrollment.toml"
    path.write_text(path.read_text().replace("fleet.example.org:8444", ""))
    with pytest.raises(ConfigError, match="no enrollment"):
        FleetTrust.load(fleet.directory)
