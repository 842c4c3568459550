"""The key that signs policies, in the learner's identity: the policy key, or a delegate of it.

    policy.key      the policy key: 32 bytes as hexadecimal
    delegate.key    a delegate's key, and in the second line its delegation, both as hexadecimal

Where both are, the delegate signs.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.delegation import Delegation, Purpose, check_purpose, prove_delegation
from shoal.errors import IdentityError, PolicyRejected, WireError
from shoal.identity import POLICY_KEY_FILE, Identity
from shoal.logs import get_logger

KEY_FILE: Final = "policy.key"
DELEGATE_FILE: Final = "delegate.key"
RENEW: Final = (
    "have the policy key delegate anew (`shoal pki delegate --policy-key ...`) and restart the "
    "learner"
)
_log = get_logger("signing")


@dataclass(frozen=True, slots=True)
class HeldDelegation:
    """A delegation, as its delegate holds it.

    Attributes:
        delegation: What it says.
        signed: As it was signed, to go along with each policy.
        root: The policy key that signed it.
    """

    delegation: Delegation
    signed: bytes
    root: Ed25519PublicKey

    def problem(self, now_s: float) -> str:
        """Why no device would take what is signed now; empty where there is no reason.

        Args:
            now_s: This machine's clock, Unix seconds.
        """
        if self.delegation.holds(now_s):
            return ""
        named = f"the delegation of generation {self.delegation.generation}"
        if now_s < self.delegation.not_before_s:
            return f"{named} has not begun by this machine's clock: set it"
        return (
            f"{named}, by which this learner signs policies, ended at {self.delegation.ends}: "
            f"{RENEW}; devices act on with what they have"
        )

    def older(self, signed_by: Delegation | None) -> str:
        """Why devices that took what another signed would take nothing of this; empty: they would.

        Args:
            signed_by: The other; None: the policy key itself.
        """
        mine = self.delegation.generation
        if signed_by is None or signed_by.generation <= mine:
            return ""
        return (
            f"signed by the delegate of generation {signed_by.generation}, and this learner's is "
            f"of {mine}, which devices refuse by now: give it the newer one, or {RENEW}"
        )


@dataclass(frozen=True, slots=True)
class Signer:
    """What a learner signs policies with.

    Attributes:
        key: Signs.
        held: By whose leave; None: it is the policy key itself.
    """

    key: Ed25519PrivateKey
    held: HeldDelegation | None = None

    @property
    def root(self) -> Ed25519PublicKey:
        """The policy key, which devices hold."""
        return self.key.public_key() if self.held is None else self.held.root


def load_signer(identity: Identity, fleet: str) -> Signer:
    """Reads what a learner signs with: a delegate's key, or else the policy key.

    An ended delegation is no error here: what was signed by it can still be read.

    Raises:
        IdentityError: There is neither, or it is malformed, readable by others, or of no use to a
            fleet of that name and policy key.
    """
    if not (identity.directory / DELEGATE_FILE).exists():
        return Signer(load_signing_key(identity))
    signer = _load_delegate(identity, fleet)
    if (identity.directory / KEY_FILE).exists():
        _log.warning(
            "policy_key_not_needed",
            path=str(identity.directory / KEY_FILE),
            problem="a delegate signs: carry the policy key away, and remove it here",
        )
    return signer


def load_signing_key(identity: Identity) -> Ed25519PrivateKey:
    """Reads the policy key: 32 bytes as hexadecimal.

    Raises:
        IdentityError: It is missing, malformed, readable by others, or not the one whose public
            half the devices hold.
    """
    path: Path = identity.directory / KEY_FILE
    key = _private_key(path, _read_secret(path).strip())
    public = key.public_key().public_bytes_raw()
    if identity.policy_public_key is not None and identity.policy_public_key != public:
        raise IdentityError(
            f"{path} and policy.pub do not belong together: no device would accept its policies"
        )
    return key


def _load_delegate(identity: Identity, fleet: str) -> Signer:
    path = identity.directory / DELEGATE_FILE
    if identity.policy_public_key is None:
        raise IdentityError(
            f"{identity.directory / POLICY_KEY_FILE}: missing; a delegation is proven by it"
        )
    seed, _, rest = _read_secret(path).strip().partition("\n")
    key = _private_key(path, seed)
    root = Ed25519PublicKey.from_public_bytes(identity.policy_public_key)
    try:
        signed = bytes.fromhex(rest)
        delegation = prove_delegation(signed, root)
        check_purpose(delegation, Purpose.POLICIES, fleet=fleet)
    except ValueError as error:
        raise IdentityError(f"{path}: the second line is no delegation; {RENEW}") from error
    except (WireError, PolicyRejected) as error:
        raise IdentityError(
            f"{path}: {error}: no device would accept its policies; {RENEW}"
        ) from error
    if delegation.public_key != key.public_key().public_bytes_raw():
        raise IdentityError(f"{path}: key and delegation do not belong together; {RENEW}")
    return Signer(key, HeldDelegation(delegation, signed, root))


def _private_key(path: Path, text: str) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise IdentityError(f"{path}: must be 32 bytes as hexadecimal ({error})") from error


def _read_secret(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text("ascii")
    except OSError as error:
        raise IdentityError(
            f"{path}: {error.strerror}; only a learner's identity can sign policies: "
            "issue one with the role learner"
        ) from error
    except ValueError as error:
        raise IdentityError(f"{path}: must be hexadecimal ({error})") from error
    if mode & 0o077:
        raise IdentityError(f"{path}: others can read it (mode {mode:04o}); chmod 600 it")
    return text
