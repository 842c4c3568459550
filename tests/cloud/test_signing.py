from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_learner.downlink.signing import load_signer, load_signing_key
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoalctl.pki.delegates import DelegationOffice, install
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


def delegated(pki: FleetPki, fleet: str = "demo") -> Identity:
    """A learner whose policy key lies elsewhere."""
    office = DelegationOffice(pki.directory / "policy.key", fleet, pki.policy_public_key)
    delegate = office.delegate(present=pki.directory / "none")
    return Identity.load(pki.issue("learner", Role.LEARNER, delegate=delegate))


def test_a_delegate_signs_where_there_is_one_and_the_policy_key_is_not_needed(
    pki: FleetPki,
) -> None:
    identity = delegated(pki)
    assert not (identity.directory / "policy.key").exists()
    signer = load_signer(identity, "demo")
    assert signer.root.public_bytes_raw() == identity.policy_public_key
    assert signer.held is not None
    assert signer.held.delegation.public_key == signer.key.public_key().public_bytes_raw()
    assert signer.held.delegation.generation == 1


def test_without_a_delegate_the_policy_key_signs(pki: FleetPki) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    signer = load_signer(identity, "demo")
    assert signer.held is None
    assert signer.root.public_bytes_raw() == identity.policy_public_key


def test_a_delegate_beside_the_policy_key_signs(pki: FleetPki) -> None:
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    office = DelegationOffice(pki.directory / "policy.key", "demo", pki.policy_public_key)
    path = identity.directory / "delegate.key"
    install(path, office.delegate(present=path))
    held = load_signer(identity, "demo").held
    assert held is not None
    assert held.older(None) == ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda key, signed: f"{key}\n", "policy key"),
        (lambda key, signed: f"{key}\nnot hex", "second line"),
        (lambda key, signed: f"00\n{signed}", "32 bytes"),
        (lambda key, signed: f"{key}\n{signed[:-2]}00", "not of this fleet's policy key"),
        (lambda key, signed: f"{'11' * 32}\n{signed}", "do not belong together"),
        (lambda key, signed: "\N{SNOWMAN}", "hexadecimal"),
    ],
)
def test_a_delegate_of_no_use_is_named_with_what_to_do(
    pki: FleetPki, damage: Callable[[str, str], str], message: str
) -> None:
    identity = delegated(pki)
    path = identity.directory / "delegate.key"
    key, signed = path.read_text().split()
    path.write_text(damage(key, signed), encoding="utf-8")
    with pytest.raises(IdentityError, match=rf"delegate\.key.*{message}"):
        load_signer(identity, "demo")


def test_a_delegate_that_others_can_read_or_of_another_fleet_is_refused(pki: FleetPki) -> None:
    identity = delegated(pki)
    with pytest.raises(IdentityError, match="of fleet 'demo', and is for 'reef'"):
        load_signer(identity, "reef")
    (identity.directory / "delegate.key").chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_signer(identity, "demo")
