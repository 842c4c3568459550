"""The keys of a fleet as they lie in its directory: those of root, intermediate and policies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.errors import ConfigError, IdentityError, IdentityMissing
from shoal.topics import check_fleet
from shoalctl.pki.certificates import ca_certificate, fleet_of, intermediate_certificate
from shoalctl.pki.key_files import (
    PRIVATE,
    PUBLIC,
    certificate_pem,
    key_pem,
    private_hex,
    public_hex,
    read_key,
    read_policy_key,
    write_new,
)

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
INTERMEDIATE_FILE, INTERMEDIATE_KEY_FILE = "intermediate.pem", "intermediate.key"
POLICY_KEY_FILE, POLICYPUBLIC_FILE = "policy.key", "policy.pub"


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """What a fleet signs with, as far as it is at hand.

    keys = FleetKeys.make(Path("fleet"), "reef", now=datetime.now(UTC))
    FleetKeys.read(Path("fleet")).fleet        # "reef"

    Attributes:
        fleet: The fleet's name.
        ca: The root.
        issuer: What signs certificates: the intermediate, or the root of a fleet that has none.
        policy_public_key: The raw 32 bytes that devices verify policies with.
        issuer_key: Of the issuer.
        policy_key: That signs policies, or delegates that; None: it is kept elsewhere.
    """

    fleet: str
    ca: x509.Certificate
    issuer: x509.Certificate
    policy_public_key: bytes
    issuer_key: ec.EllipticCurvePrivateKey
    policy_key: Ed25519PrivateKey | None

    @classmethod
    def make(
        cls, directory: Path, fleet: str, *, now: datetime, offline: Path | None = None
    ) -> Self:
        """Makes the keys of a new fleet and writes them.

        Args:
            directory: Created if missing; must not hold a fleet already.
            fleet: The fleet's name.
            now: From when certificates are valid.
            offline: Where the keys of root and policies go instead, to be carried away.

        Raises:
            ConfigError: The name is not valid, or a directory holds a fleet or can't be written.
        """
        check_fleet(fleet)
        safe = offline or directory
        for place in (directory, safe):
            if any((place / name).exists() for name in (CA_FILE, CA_KEY_FILE)):
                raise ConfigError(f"{place} holds a fleet's CA already: choose another directory")
        ca_key, issuer_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        policy_key = Ed25519PrivateKey.generate()
        ca = ca_certificate(ca_key, fleet, now=now)
        issuer = intermediate_certificate(ca, ca_key, issuer_key.public_key(), now=now)
        try:
            for place in (directory, safe):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_new(directory / CA_FILE, certificate_pem(ca), PUBLIC)
            write_new(directory / INTERMEDIATE_FILE, certificate_pem(issuer), PUBLIC)
            write_new(directory / INTERMEDIATE_KEY_FILE, key_pem(issuer_key), PRIVATE)
            write_new(directory / POLICYPUBLIC_FILE, public_hex(policy_key.public_key()), PUBLIC)
            write_new(safe / POLICY_KEY_FILE, private_hex(policy_key), PRIVATE)
            write_new(safe / CA_KEY_FILE, key_pem(ca_key), PRIVATE)
            if safe != directory:
                write_new(safe / CA_FILE, certificate_pem(ca), PUBLIC)
        except OSError as error:
            raise ConfigError(f"can't write a fleet's keys to {directory}: {error}") from error
        public = policy_key.public_key().public_bytes_raw()
        kept = policy_key if offline is None else None  # a learner is given a delegate then
        return cls(fleet, ca, issuer, public, issuer_key, kept)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Reads those that are there, and those that it can't do without.

        The key of the root may be absent if there is an intermediate, that of the policies always.

        Raises:
            IdentityMissing: A file is missing.
            IdentityError: One is unreadable, readable by others, or damaged.
        """
        try:
            ca = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
            fleet = fleet_of(ca)
            ca_key = read_key(directory / CA_KEY_FILE)
            issuer, issuer_key = ca, ca_key
            if (directory / INTERMEDIATE_FILE).exists():
                issuer = x509.load_pem_x509_certificate(
                    (directory / INTERMEDIATE_FILE).read_bytes()
                )
                issuer_key = read_key(directory / INTERMEDIATE_KEY_FILE)
                issuer.verify_directly_issued_by(ca)
            policy_key = read_policy_key(directory / POLICY_KEY_FILE)
            public = (
                policy_key.public_key().public_bytes_raw()
                if policy_key is not None
                else bytes.fromhex((directory / POLICYPUBLIC_FILE).read_text("ascii"))
            )
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            kind = IdentityMissing if isinstance(error, FileNotFoundError) else IdentityError
            raise kind(
                f"no fleet CA in {directory} ({reason}): make one with `shoal fleet init`"
            ) from error
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(
                f"the fleet CA in {directory} is damaged ({error}): restore it from a backup"
            ) from error
        for name, key, certificate in (
            (CA_KEY_FILE, ca_key, ca),
            (INTERMEDIATE_KEY_FILE, issuer_key, issuer),
        ):
            if key is not None and key.public_key() != certificate.public_key():
                raise IdentityError(
                    f"{directory}/{name} does not belong to {name.removesuffix('key')}pem: "
                    "restore both from one backup"
                )
        if issuer_key is None:
            missing = INTERMEDIATE_KEY_FILE if issuer is not ca else CA_KEY_FILE
            raise IdentityMissing(
                f"no fleet CA in {directory} ({directory / missing}: No such file or directory): "
                "make one with `shoal fleet init`"
            )
        return cls(fleet, ca, issuer, public, issuer_key, policy_key)
