"""The fleet's own certificate authority and policy signing key.

One directory holds a fleet's trust: the CA (EC P-256) that every certificate of the fleet chains
to, and the Ed25519 key that signs policies. Everything here is local; enrolment over a network
enters through `FleetPki.sign_csr`, which never sees a private key.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.errors import ConfigError, IdentityError
from shoal.identity import RELAY_URI
from shoal.topics import check_device_id, check_fleet
from shoalctl.certificates import (
    LEAF_LIFETIME,
    Subject,
    ca_certificate,
    fleet_of,
    leaf_certificate,
    requested_key,
)

_PRIVATE = 0o600
_PUBLIC = 0o644


class Role(StrEnum):
    """What a certificate is for. Every role has one name, its own, but `DEVICE` and `RELAY`."""

    DEVICE = "device"
    LEARNER = "learner"
    OPERATOR = "operator"
    BROKER = "broker"
    SERVER = "server"
    RELAY = "relay"

    @property
    def serves(self) -> bool:
        """Whether peers connect to it."""
        return self in {Role.LEARNER, Role.BROKER, Role.SERVER, Role.RELAY}


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class FleetPki:
    """A fleet's certificate authority and policy key, kept in one directory.

    Example:
        >>> pki = FleetPki.create(Path("pki"), "demo")
        >>> pki.issue("pi-1", Role.DEVICE)  # to copy to the device as it is
        PosixPath('pki/identities/pi-1')

    Attributes:
        directory: Where the keys are; only its owner may read it.
        fleet: The fleet's name.
        ca: The root that every identity carries as `ca.pem`.
        clock: The wall clock that dates certificates.
    """

    directory: Path
    fleet: str
    ca: x509.Certificate
    clock: Callable[[], datetime]
    _ca_key: ec.EllipticCurvePrivateKey
    _policy_key: Ed25519PrivateKey

    @classmethod
    def create(
        cls, directory: Path, fleet: str, *, clock: Callable[[], datetime] = _utc_now
    ) -> Self:
        """Makes the keys of a new fleet.

        Args:
            directory: Created if missing; must not hold a fleet already.
            fleet: The fleet's name.
            clock: The wall clock that dates certificates.

        Raises:
            ConfigError: The name is not valid, or the directory holds a fleet or can't be written.
        """
        check_fleet(fleet)
        if (directory / "ca.key").exists():
            raise ConfigError(f"{directory} holds a fleet's CA already: choose another directory")
        ca_key = ec.generate_private_key(ec.SECP256R1())
        policy_key = Ed25519PrivateKey.generate()
        ca = ca_certificate(ca_key, fleet, now=clock())
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(directory / "ca.pem", _pem(ca), _PUBLIC)
            _write(directory / "policy.key", _private_hex(policy_key), _PRIVATE)
            _write(directory / "policy.pub", _public_hex(policy_key), _PUBLIC)
            _write(directory / "ca.key", _key_pem(ca_key), _PRIVATE)
        except OSError as error:
            raise ConfigError(f"can't write a fleet's keys to {directory}: {error}") from error
        return cls(directory, fleet, ca, clock, ca_key, policy_key)

    @classmethod
    def load(cls, directory: Path, *, clock: Callable[[], datetime] = _utc_now) -> Self:
        """Opens the keys of an existing fleet.

        Raises:
            IdentityError: A file is missing, unreadable, readable by others, or damaged.
        """
        try:
            ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
            ca_key = serialization.load_pem_private_key(_secret(directory / "ca.key"), None)
            policy_seed = bytes.fromhex(_secret(directory / "policy.key").decode("ascii"))
            policy_key = Ed25519PrivateKey.from_private_bytes(policy_seed)
            fleet = fleet_of(ca)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            raise IdentityError(
                f"no fleet CA in {directory} ({reason}): make one with `shoal pki init`"
            ) from error
        except ValueError as error:
            raise IdentityError(
                f"the fleet CA in {directory} is damaged ({error}): restore it from a backup"
            ) from error
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or (
            ca_key.public_key() != ca.public_key()
        ):
            raise IdentityError(
                f"{directory}/ca.key does not belong to ca.pem: restore both from one backup"
            )
        return cls(directory, fleet, ca, clock, ca_key, policy_key)

    @property
    def policy_public_key(self) -> bytes:
        """The raw 32 bytes that devices verify policies with."""
        return self._policy_key.public_key().public_bytes_raw()

    def issue(
        self,
        name: str,
        role: Role,
        *,
        sans: Sequence[str] = (),
        directory: Path | None = None,
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> Path:
        """Makes a key and a certificate, and writes them as an identity directory.

        The directory appears whole or not at all. The learner's also holds the policy signing key.

        Args:
            name: The certificate's CN: a device id, or the role's own name.
            role: What the certificate is for.
            sans: Host names and addresses that peers connect to, beside the loopback ones.
            directory: Where to write; `identities/{name}` beside the CA if None.
            lifetime: How long the certificate is valid.

        Returns:
            The identity directory.

        Raises:
            ConfigError: The name does not fit the role, a host is not valid, or the directory
                exists or can't be written.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certify(key.public_key(), name, role, sans, lifetime)
        target = self.directory / "identities" / name if directory is None else directory
        if target.exists():
            raise ConfigError(
                f"{target} exists already: to give {name} a new key, move the old one away first"
            )
        files = {
            "ca.pem": (_pem(self.ca), _PUBLIC),
            "cert.pem": (certificate, _PUBLIC),
            "key.pem": (_key_pem(key), _PRIVATE),
            "policy.pub": (_public_hex(self._policy_key), _PUBLIC),
        }
        if role is Role.LEARNER:
            files["policy.key"] = (_private_hex(self._policy_key), _PRIVATE)
        try:
            _write_directory(target, files)
        except OSError as error:
            raise ConfigError(f"can't write the identity of {name}: {error}") from error
        return target

    def sign_csr(
        self,
        csr_pem: bytes,
        name: str,
        role: Role,
        *,
        sans: Sequence[str] = (),
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> bytes:
        """Certifies a key that stays with its owner.

        Only the request's key is used: name, role and hosts are the caller's decision, never the
        requester's.

        Returns:
            The certificate, PEM.

        Raises:
            IdentityError: The request does not prove that its sender holds an EC P-256 key.
            ConfigError: The name does not fit the role, or a host is not valid.
        """
        return self._certify(requested_key(csr_pem), name, role, sans, lifetime)

    def _certify(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        role: Role,
        sans: Sequence[str],
        lifetime: timedelta,
    ) -> bytes:
        if role in {Role.DEVICE, Role.RELAY}:
            check_device_id(name)
        elif name != role:
            raise ConfigError(
                f"{name!r}: the {role}'s certificate is named {str(role)!r}, only devices and"
                " relays have ids"
            )
        if sans and not role.serves:
            raise ConfigError(f"{name} serves nobody, so it takes no host names: {', '.join(sans)}")
        uris = (RELAY_URI,) if role is Role.RELAY else ()
        subject = Subject(name, tuple(sans) if role.serves else None, uris)
        return _pem(
            leaf_certificate(
                self.ca, self._ca_key, key, subject, now=self.clock(), lifetime=lifetime
            )
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _private_hex(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes_raw().hex().encode("ascii") + b"\n"


def _public_hex(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw().hex().encode("ascii") + b"\n"


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_directory(target: Path, files: dict[str, tuple[bytes, int]]) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, (content, mode) in files.items():
            _write(staging / name, content, mode)
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _secret(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise IdentityError(f"others may read {path}: set its mode to 600 (chmod 600 {path})")
    return path.read_bytes()
