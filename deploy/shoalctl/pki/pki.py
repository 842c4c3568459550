"""The fleet's own certificate authority and policy signing key.

One directory holds a fleet's trust: the root CA (EC P-256) that every certificate of the fleet
chains to, the intermediate that issues them, and the Ed25519 key that signs policies. The keys of
root and policies may lie elsewhere: the intermediate does the daily work. Everything here is local;
enrolment over a network enters through `FleetPki.sign_csr`, which never sees a private key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.durable_file import write_durably
from shoal.errors import ConfigError, IdentityError
from shoal.identity import RELAY_URI
from shoal.topics import check_device_id
from shoalctl.pki.certificates import (
    LEAF_LIFETIME,
    Subject,
    common_name,
    hosts_of,
    intermediate_certificate,
    leaf_certificate,
    requested_key,
    revocation_list,
)
from shoalctl.pki.delegates import DELEGATE_FILE, Delegate
from shoalctl.pki.fleet_keys import CA_KEY_FILE, INTERMEDIATE_FILE, POLICY_KEY_FILE, FleetKeys
from shoalctl.pki.key_files import (
    PRIVATE,
    PUBLIC,
    certificate_pem,
    key_pem,
    private_hex,
    read_key,
    write_directory,
)


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
        issuer: What signs certificates: the intermediate, or the root of a fleet that has none.
        clock: The wall clock that dates certificates.
        policy_public_key: The raw 32 bytes that devices verify policies with.
    """

    directory: Path
    fleet: str
    ca: x509.Certificate
    issuer: x509.Certificate
    clock: Callable[[], datetime]
    policy_public_key: bytes
    _issuer_key: ec.EllipticCurvePrivateKey
    _policy_key: Ed25519PrivateKey | None

    @classmethod
    def create(
        cls,
        directory: Path,
        fleet: str,
        *,
        offline: Path | None = None,
        clock: Callable[[], datetime] = _utc_now,
    ) -> Self:
        """Makes the keys of a new fleet.

        Args:
            directory: Created if missing; must not hold a fleet already.
            fleet: The fleet's name.
            offline: Where the keys of root and policies go instead, to be carried away.
            clock: The wall clock that dates certificates.

        Raises:
            ConfigError: The name is not valid, or a directory holds a fleet or can't be written.
        """
        keys = FleetKeys.make(directory, fleet, offline=offline, now=clock())
        return cls._of(directory, keys, clock)

    @classmethod
    def load(cls, directory: Path, *, clock: Callable[[], datetime] = _utc_now) -> Self:
        """Opens the keys of an existing fleet: those that are there, and those it can't do without.

        The key of the root may be absent if there is an intermediate, that of the policies always:
        then a learner's identity is made with a delegate of it.

        Raises:
            IdentityError: A file is missing, unreadable, readable by others, or damaged.
        """
        return cls._of(directory, FleetKeys.read(directory), clock)

    @classmethod
    def _of(cls, directory: Path, keys: FleetKeys, clock: Callable[[], datetime]) -> Self:
        return cls(
            directory,
            keys.fleet,
            keys.ca,
            keys.issuer,
            clock,
            keys.policy_public_key,
            keys.issuer_key,
            keys.policy_key,
        )

    def renew_intermediate(self, root: Path) -> Self:
        """Has the root certify the intermediate anew; certificates that it issued stay good.

        Args:
            root: Where the root's key is.

        Raises:
            IdentityError: The key can't be read, or is not this fleet's.
            ConfigError: The fleet has no intermediate, or it can't be written.
        """
        if self.issuer is self.ca:
            raise ConfigError(f"{self.directory} has no intermediate: its root issues certificates")
        try:
            ca_key = read_key(root / CA_KEY_FILE)
        except (OSError, ValueError, TypeError) as error:
            raise IdentityError(f"can't read {root / CA_KEY_FILE}: {error}") from error
        if ca_key is None or ca_key.public_key() != self.ca.public_key():
            raise IdentityError(f"{root / CA_KEY_FILE} is not the key of {self.fleet}'s root")
        key = self._issuer_key.public_key()
        issuer = intermediate_certificate(self.ca, ca_key, key, now=self.clock())
        try:
            write_durably(self.directory / INTERMEDIATE_FILE, certificate_pem(issuer), mode=PUBLIC)
        except OSError as error:
            raise ConfigError(f"can't write the intermediate: {error}") from error
        return replace(self, issuer=issuer)

    @property
    def fingerprint(self) -> str:
        """The root's sha256, as hexadecimal: what a device that has no certificate pins."""
        return self.ca.fingerprint(hashes.SHA256()).hex()

    @property
    def chain_pem(self) -> bytes:
        """What a certificate is followed by on its way to whoever trusts the root alone."""
        return b"" if self.issuer is self.ca else certificate_pem(self.issuer)

    def revocation_list(self, revoked: Mapping[int, datetime]) -> bytes:
        """The CRL of the issuer, PEM.

        Args:
            revoked: Serial numbers, and since when they are not to be trusted.
        """
        crl = revocation_list(self.issuer, self._issuer_key, revoked, now=self.clock())
        return crl.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str,
        role: Role,
        *,
        sans: Sequence[str] = (),
        directory: Path | None = None,
        lifetime: timedelta = LEAF_LIFETIME,
        delegate: Delegate | None = None,
    ) -> Path:
        """Makes a key and a certificate, and writes them as an identity directory.

        The directory appears whole or not at all. The learner's also holds what it signs policies
        with: a delegate, or the policy key itself.

        Args:
            name: The certificate's CN: a device id, or the role's own name.
            role: What the certificate is for.
            sans: Host names and addresses that peers connect to, beside the loopback ones.
            directory: Where to write; `identities/{name}` beside the CA if None.
            lifetime: How long the certificate is valid.
            delegate: Of the policy key, for a learner; None: it gets the policy key.

        Returns:
            The identity directory.

        Raises:
            ConfigError: The name does not fit the role, a host is not valid, or the directory
                exists or can't be written.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.certify(key.public_key(), name, role, sans=sans, lifetime=lifetime)
        target = self.directory / "identities" / name if directory is None else directory
        if target.exists():
            raise ConfigError(
                f"{target} exists already: to give {name} a new key, move the old one away first"
            )
        files = {
            "ca.pem": (certificate_pem(self.ca), PUBLIC),
            "cert.pem": (certificate, PUBLIC),
            "key.pem": (key_pem(key), PRIVATE),
            "policy.pub": (self.policy_public_key.hex().encode("ascii") + b"\n", PUBLIC),
        }
        if role is Role.LEARNER and delegate is not None:
            files[DELEGATE_FILE] = (delegate.file, PRIVATE)
        elif role is Role.LEARNER:
            if self._policy_key is None:
                raise ConfigError(
                    f"{self.directory} has no {POLICY_KEY_FILE}, for which a learner signs: give "
                    "its place with --policy-key"
                )
            files[POLICY_KEY_FILE] = (private_hex(self._policy_key), PRIVATE)
        try:
            write_directory(target, files)
        except OSError as error:
            raise ConfigError(f"can't write the identity of {name}: {error}") from error
        return target

    def renew(self, identity: Path, *, lifetime: timedelta = LEAF_LIFETIME) -> x509.Certificate:
        """Gives the key of an identity directory a certificate that ends later.

        Name and hosts stay as they are. No other key than the issuer's is needed.

        Raises:
            IdentityError: It holds no certificate of this fleet.
            ConfigError: It can't be written.
        """
        path = identity / "cert.pem"
        try:
            present = x509.load_pem_x509_certificate(path.read_bytes())
            key = present.public_key()
            present.verify_directly_issued_by(self.issuer)
        except (OSError, ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(f"{path}: no certificate of {self.fleet} ({error})") from error
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise IdentityError(f"{path}: another kind of key than this fleet has: issue it anew")
        name = common_name(present)
        role = Role(name) if name in list(Role) else Role.DEVICE
        chain = self.certify(key, name, role, sans=hosts_of(present), lifetime=lifetime)
        try:
            write_durably(path, chain, mode=PUBLIC)
        except OSError as error:
            raise ConfigError(f"can't write {path}: {error.strerror}") from error
        return x509.load_pem_x509_certificate(chain)

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
            The certificate and its chain below the root, PEM.

        Raises:
            IdentityError: The request does not prove that its sender holds an EC P-256 key.
            ConfigError: The name does not fit the role, or a host is not valid.
        """
        return self.certify(requested_key(csr_pem), name, role, sans=sans, lifetime=lifetime)

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        role: Role,
        *,
        sans: Sequence[str] = (),
        lifetime: timedelta = LEAF_LIFETIME,
    ) -> bytes:
        """Certifies a key whose holder is known to the caller.

        Returns:
            The certificate and its chain below the root, PEM.

        Raises:
            ConfigError: The name does not fit the role, or a host is not valid.
            IdentityError: The issuer's own certificate has ended.
        """
        if self.clock() >= self.issuer.not_valid_after_utc:
            raise IdentityError(
                f"the certificate that issues {self.fleet}'s certificates has ended: "
                "`shoal pki renew-intermediate`, with the root's key at hand"
            )
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
        certificate = leaf_certificate(
            self.issuer, self._issuer_key, key, subject, now=self.clock(), lifetime=lifetime
        )
        return certificate_pem(certificate) + self.chain_pem
