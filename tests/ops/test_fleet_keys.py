"""The keys of a fleet on disk: what is written, what may be missing, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shoal.errors import ConfigError, IdentityError
from shoalctl.pki.fleet_keys import FleetKeys

NOW = datetime(2030, 1, 2, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    FleetKeys.make(tmp_path / "fleet", "reef", now=NOW)
    return tmp_path / "fleet"


def same(left: FleetKeys, right: FleetKeys) -> bool:
    keys = [
        each.issuer_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for each in (left, right)
    ]
    facts = [(each.fleet, each.ca, each.issuer, each.policy_public_key) for each in (left, right)]
    return keys[0] == keys[1] and facts[0] == facts[1]


def test_what_was_made_is_read_and_private_files_are_their_owners(tmp_path: Path) -> None:
    made = FleetKeys.make(tmp_path / "fleet", "reef", now=NOW)
    read = FleetKeys.read(tmp_path / "fleet")
    assert same(made, read)
    assert read.policy_key is not None
    assert read.policy_key.public_key().public_bytes_raw() == read.policy_public_key
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "fleet").iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "ca.key",
        "intermediate.key",
        "policy.key",
    }


def test_the_keys_of_root_and_policies_may_be_carried_away(tmp_path: Path) -> None:
    made = FleetKeys.make(tmp_path / "fleet", "reef", now=NOW, offline=tmp_path / "safe")
    read = FleetKeys.read(tmp_path / "fleet")
    assert same(made, read)
    assert made.policy_key is None
    assert read.policy_key is None
    assert {path.name for path in (tmp_path / "safe").iterdir()} == {
        "ca.key",
        "ca.pem",
        "policy.key",
    }


def test_an_existing_fleet_is_never_overwritten(directory: Path) -> None:
    before = FleetKeys.read(directory)
    with pytest.raises(ConfigError, match="holds a fleet's CA already"):
        FleetKeys.make(directory, "reef", now=NOW)
    with pytest.raises(ConfigError, match="holds a fleet's CA already"):
        FleetKeys.make(directory.parent / "new", "reef", now=NOW, offline=directory)
    assert same(FleetKeys.read(directory), before)


def test_reading_says_which_file_is_missing(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(IdentityError, match=r"ca\.pem: No such file"):
        FleetKeys.read(tmp_path)
    (directory / "intermediate.key").unlink()
    with pytest.raises(IdentityError, match=r"intermediate\.key: No such file"):
        FleetKeys.read(directory)


def test_reading_refuses_keys_that_others_may_read(directory: Path) -> None:
    (directory / "policy.key").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        FleetKeys.read(directory)


@pytest.mark.parametrize("file", ["ca.pem", "ca.key", "intermediate.pem", "policy.key"])
def test_reading_a_damaged_file_is_one_clear_error(directory: Path, file: str) -> None:
    (directory / file).write_text("damaged")
    with pytest.raises(IdentityError, match="damaged"):
        FleetKeys.read(directory)


def test_reading_refuses_a_key_of_another_fleet(directory: Path, tmp_path: Path) -> None:
    FleetKeys.make(tmp_path / "other", "reef", now=NOW)
    (directory / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(IdentityError, match="does not belong"):
        FleetKeys.read(directory)
