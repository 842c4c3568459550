"""An identity in the making: a key on the disk, beside the place where the identity will be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_agent.enrollment.address import MEMBERSHIP_FILE, Membership
from shoal.durable_file import remove_leftovers, sync_directory, write_durably
from shoal.errors import IdentityError
from shoal.identity import CA_FILE, CERT_FILE, KEY_FILE, POLICY_KEY_FILE
from shoal.v1 import enrollment_pb2 as pb

_PUBLIC: Final = 0o644


def pending_directory(identity: Path) -> Path:
    """Where an identity waits for its certificate."""
    return identity.with_name(f".{identity.name}.enrolling")


def pending_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    """The key of an enrolment that goes on, made when it begins.

    Raises:
        IdentityError: It can't be written or read.
    """
    path = directory / KEY_FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        remove_leftovers(directory)  # of a power cut
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            write_durably(path, pem, mode=0o600)
        return private_key(path.read_bytes(), path)
    except OSError as error:
        raise IdentityError(f"can't write {path}: {error.strerror}; choose --identity") from error


def private_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """The device's key.

    Raises:
        IdentityError: It is damaged, or another kind of key.
    """
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise IdentityError(f"{path}: damaged ({error}); remove it and enrol anew") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path}: not an EC key; enrol anew")
    return key


def install(identity: Path, enrolled: pb.Enrolled, membership: Membership, root_pem: str) -> None:
    """Completes an identity, whose directory appears whole or not at all.

    Args:
        identity: The directory to make.
        enrolled: The answer, checked.
        membership: What it says of the fleet.
        root_pem: The CA that was pinned.

    Raises:
        IdentityError: It can't be written, or exists.
    """
    pending = pending_directory(identity)
    try:
        write_durably(pending / CA_FILE, root_pem.encode(), mode=_PUBLIC)
        public_key = enrolled.policy_public_key.hex().encode() + b"\n"
        write_durably(pending / POLICY_KEY_FILE, public_key, mode=_PUBLIC)
        write_durably(pending / MEMBERSHIP_FILE, membership.dump(), mode=_PUBLIC)
        write_durably(pending / CERT_FILE, enrolled.certificate_chain, mode=_PUBLIC)
        pending.replace(identity)  # an empty directory there is replaced
        sync_directory(identity.parent)
    except OSError as error:
        raise IdentityError(
            f"can't write the identity {identity}: {error.strerror}; it must not exist yet"
        ) from error
