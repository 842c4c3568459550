"""What of a fleet's directory goes into a bundle, and the key that signs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.endpoint import Endpoint
from shoal.errors import ConfigError, IdentityError, IdentityMissing
from shoal.identity import PUBLIC_KEY_BYTES
from shoalctl.enrollment.config import load_enrollment
from shoalctl.pki.certificates import fleet_of
from shoalctl.pki.key_files import read_policy_key

KEY_FILE, PUBLIC_FILE, CA_FILE = "policy.key", "policy.pub", "ca.pem"
_LEARNER = Path("identities", "learner")
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@dataclass(frozen=True, slots=True)
class FleetTrust:
    """A fleet, as far as its devices need to know.

    Attributes:
        fleet: Its name.
        fingerprint: The sha256 of its CA, hexadecimal.
        public_key: What its policies and bundles are verified with, 32 bytes.
        enrollment: Where devices enrol.
        broker: Where they send what happened.
        parameter_server: Where they get policies.
        signing_key: Signs the bundle.
    """

    fleet: str
    fingerprint: str
    public_key: bytes
    enrollment: Endpoint
    broker: Endpoint
    parameter_server: Endpoint
    signing_key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        policy_key: Path | None = None,
        warn: Callable[[str], object] = lambda _line: None,
    ) -> FleetTrust:
        """Reads a fleet's directory.

        Args:
            directory: What `shoal fleet init` made.
            policy_key: Where the signing key is, if it is kept elsewhere.
            warn: Told of what is allowed and seldom meant.

        Raises:
            ConfigError: It is no fleet's directory, or doesn't say where the fleet is reached.
            IdentityError: The CA or a key is missing, damaged, or not this fleet's.
        """
        enrollment = load_enrollment(directory)
        try:
            ca = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
            fleet = fleet_of(ca)
        except OSError as error:
            raise IdentityError(
                f"{error.filename}: {error.strerror}; give the directory that `shoal fleet init` "
                "made with --fleet"
            ) from error
        except ValueError as error:
            raise IdentityError(f"{directory / CA_FILE}: damaged ({error})") from error
        public_key = fleet_public_key(directory)
        addresses = enrollment.addresses
        found = {
            name: _endpoint(directory, name, getattr(addresses, name))
            for name in ("enrollment", "broker", "parameter_server")
        }
        local = [str(each) for each in found.values() if str(each).startswith(_LOOPBACK)]
        if local:
            warn(
                f"devices will be told {', '.join(local)}, which only this machine is to itself: "
                f"set [addresses] in {directory / 'enrollment.toml'}, or make the fleet with --host"
            )
        return cls(
            fleet,
            ca.fingerprint(hashes.SHA256()).hex(),
            public_key,
            **found,
            signing_key=_signing_key(directory, public_key, policy_key),
        )


def fleet_public_key(directory: Path) -> bytes:
    """What a fleet's bundles are verified with, 32 bytes.

    Raises:
        IdentityError: It is not in that directory, or damaged.
    """
    path = directory / PUBLIC_FILE
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except OSError as error:
        raise IdentityError(
            f"{path}: {error.strerror}; a bundle's signature is checked with it: give the "
            "directory that `shoal fleet init` made with --fleet"
        ) from error
    except ValueError as error:
        raise IdentityError(f"{path}: damaged ({error}); restore it from a backup") from error
    if len(key) != PUBLIC_KEY_BYTES:
        raise IdentityError(f"{path}: must be {PUBLIC_KEY_BYTES} bytes as hexadecimal")
    return key


def _endpoint(directory: Path, name: str, text: str) -> Endpoint:
    if not text:
        raise ConfigError(
            f"{directory / 'enrollment.toml'}: [addresses] has no {name}: say where devices reach "
            "it, as host:port"
        )
    return Endpoint.parse(text, what=f"{directory / 'enrollment.toml'}: addresses.{name}")


def _signing_key(directory: Path, public_key: bytes, given: Path | None) -> Ed25519PrivateKey:
    """The key that belongs to the public one."""
    # A learner's identity holds it too: then the other copy may be kept offline.
    places = (given,) if given else (directory / KEY_FILE, directory / _LEARNER / KEY_FILE)
    for path in places:
        try:
            key = read_policy_key(path)
        except (OSError, ValueError) as error:
            raise IdentityMissing(
                f"{path} can't be read as a signing key ({error}): give the fleet's {KEY_FILE}"
            ) from error
        if key is None:
            continue
        if key.public_key().public_bytes_raw() != public_key:
            raise IdentityError(
                f"{path} is not the key of {directory / PUBLIC_FILE}: devices would refuse the "
                "bundle"
            )
        return key
    raise IdentityMissing(
        f"no signing key ({', '.join(str(path) for path in places)}): a bundle is signed with the "
        f"fleet's {KEY_FILE}; if it is kept offline, give its place with --policy-key"
    )
