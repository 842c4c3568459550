from __future__ import annotations

from pathlib import Path

import pytest

from cloud_learner.downlink.signing import load_signing_key
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role


@pytest.fixture
def pki(tmp_path: Path) -> FleetPki:
    return FleetPki.create(tmp_path / "pki", "demo")


def test_a_learner_signs_with_the_key_whose_public_half_devices_hold(pki: FleetPki) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    public = load_signing_key(identity).public_key().public_bytes_raw()
    assert public == identity.policy_public_key


def test_a_device_cannot_sign(pki: FleetPki) -> None:
    identity = Identity.load(pki.issue("pi-1", Role.DEVICE))
    with pytest.raises(IdentityError, match=r"policy\.key.*role learner"):
        load_signing_key(identity)


@pytest.mark.parametrize("text", ["not hex", "00ff", ""])
def test_a_damaged_key_is_named(pki: FleetPki, text: str) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    (identity.directory / "policy.key").write_text(text)
    with pytest.raises(IdentityError, match=r"policy\.key"):
        load_signing_key(identity)


def test_a_key_that_others_can_read_is_refused(pki: FleetPki) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    (identity.directory / "policy.key").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_signing_key(identity)


def test_a_key_of_another_fleet_is_refused_before_any_device_would(
    pki: FleetPki, tmp_path: Path
) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    other = FleetPki.create(tmp_path / "other", "other").issue("learner", Role.LEARNER)
    (identity.directory / "policy.key").write_bytes((other / "policy.key").read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        load_signing_key(identity)
