"""A delegation: by it a fleet's policy key has another key sign for it, for a while.

The policy key, which devices trust, can then lie in a safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.v1 import delegation_pb2 as pb
from shoal.wire import parse

SCHEMA: Final = 1
SIGNING_CONTEXT: Final = b"shoal policy delegation v1\x00"
MAX_DELEGATION_BYTES: Final = 1024
MAX_PURPOSES: Final = 16
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_END_OF_TIME_S: Final = 253_402_300_799  # the last second of the year 9999
_MAX_GENERATION: Final = (1 << 62) - 1
_MAX_FLEET_BYTES: Final = 63

CLOCK_REASONS: Final = frozenset({"delegation_early", "delegation_expired"})
"""Of a refusal that depends on a clock, so that the same policy may be accepted later."""


class Purpose(IntEnum):
    """What a delegate may sign."""

    POLICIES = pb.DELEGATION_PURPOSE_POLICIES
    BUNDLES = pb.DELEGATION_PURPOSE_BUNDLES


@dataclass(frozen=True, slots=True)
class Delegation:
    """What the policy key says of a delegate.

    Attributes:
        fleet: Whose policies it may sign.
        public_key: Ed25519, 32 bytes: the delegate's.
        generation: 1 or more. Whoever accepted something of one accepts nothing of a lower one any
            more, by which delegates are revoked.
        not_before_s: From when on it holds, Unix seconds.
        not_after_s: Until when something that was not seen before is accepted, Unix seconds.
        purposes: What it may sign, by number: there may be more than `Purpose` has.
    """

    fleet: str
    public_key: bytes
    generation: int
    not_before_s: int
    not_after_s: int
    purposes: frozenset[int] = frozenset({Purpose.POLICIES})

    @property
    def ends(self) -> str:
        """Until when it holds, for people."""
        return _date(self.not_after_s)

    def holds(self, now_s: float) -> bool:
        """Whether it holds at a time."""
        return self.not_before_s <= now_s <= self.not_after_s


def encode_delegation(delegation: Delegation) -> bytes:
    """Serializes a delegation; these are the bytes to sign."""
    return pb.Delegation(
        schema=SCHEMA,
        fleet=delegation.fleet,
        public_key=delegation.public_key,
        generation=delegation.generation,
        not_before_unix_s=delegation.not_before_s,
        not_after_unix_s=delegation.not_after_s,
        purposes=sorted(delegation.purposes),  # type: ignore[arg-type] # an open enum
    ).SerializeToString(deterministic=True)


def decode_delegation(data: bytes) -> Delegation:
    """Reads a delegation; nothing in it is trusted yet.

    Raises:
        WireError: It is malformed, of another schema, or a field is out of its range.
    """
    if len(data) > MAX_DELEGATION_BYTES:
        raise LimitExceeded(f"delegation: {len(data)} bytes, the limit is {MAX_DELEGATION_BYTES}")
    message = parse(pb.Delegation, data)
    if message.schema != SCHEMA:
        raise WireError(f"delegation: schema {message.schema}, this program knows {SCHEMA}")
    if len(message.public_key) != PUBLIC_KEY_BYTES:
        raise WireError(f"delegation: the public key must be {PUBLIC_KEY_BYTES} bytes")
    if not 1 <= message.generation <= _MAX_GENERATION:
        raise WireError("delegation: generation out of range")
    if not 0 <= message.not_before_unix_s <= message.not_after_unix_s <= _END_OF_TIME_S:
        raise WireError("delegation: it ends before it begins, or its dates are out of range")
    if not 1 <= len(message.purposes) <= MAX_PURPOSES or 0 in message.purposes:
        raise WireError(f"delegation: it must have 1 to {MAX_PURPOSES} purposes")
    if len(message.fleet.encode()) > _MAX_FLEET_BYTES:
        raise WireError(f"delegation: a fleet's name has at most {_MAX_FLEET_BYTES} bytes")
    return Delegation(
        fleet=message.fleet,
        public_key=message.public_key,
        generation=message.generation,
        not_before_s=message.not_before_unix_s,
        not_after_s=message.not_after_unix_s,
        purposes=frozenset(message.purposes),
    )


def sign_delegation(delegation: Delegation, key: Ed25519PrivateKey) -> bytes:
    """A serialized `SignedDelegation`.

    Args:
        delegation: What is signed.
        key: The fleet's policy key.
    """
    signed = encode_delegation(delegation)
    return pb.SignedDelegation(
        delegation=signed, signature=key.sign(SIGNING_CONTEXT + signed)
    ).SerializeToString(deterministic=True)


def prove_delegation(data: bytes, root: Ed25519PublicKey) -> Delegation:
    """Reads a signed delegation and proves that the policy key signed it.

    Args:
        data: A serialized `SignedDelegation`, not trusted.
        root: The fleet's policy key.

    Raises:
        WireError: It is malformed.
        PolicyRejected: With the reason `delegation`.
    """
    if len(data) > MAX_DELEGATION_BYTES:
        raise LimitExceeded(f"delegation: {len(data)} bytes, the limit is {MAX_DELEGATION_BYTES}")
    message = parse(pb.SignedDelegation, data)
    try:
        root.verify(message.signature, SIGNING_CONTEXT + message.delegation)
    except InvalidSignature:
        raise PolicyRejected(
            "delegation",
            "the delegation of the key that signed is not of this fleet's policy key; nothing of "
            "it was used",
        ) from None
    return decode_delegation(message.delegation)


def check_purpose(delegation: Delegation, purpose: Purpose, *, fleet: str) -> None:
    """Checks what a delegate may sign, and for whom.

    Raises:
        PolicyRejected: With the reason `delegation_fleet` or `delegation_purpose`.
    """
    if delegation.fleet != fleet:
        raise PolicyRejected(
            "delegation_fleet",
            f"it was signed by a delegate of fleet {delegation.fleet[:63]!r}, and is for {fleet!r}",
        )
    if purpose not in delegation.purposes:
        raise PolicyRejected(
            "delegation_purpose",
            f"it was signed by a delegate that may not sign {purpose.name.lower()} (generation "
            f"{delegation.generation})",
        )


def check_current(delegation: Delegation, *, now_s: float, newest_generation: int) -> None:
    """The rules of accepting what a delegate signed and what was not accepted before.

    Args:
        delegation: The delegate's, its signature already verified.
        now_s: The clock of whoever accepts, Unix seconds.
        newest_generation: The highest generation that was ever accepted here; 0 for none.

    Raises:
        PolicyRejected: With the reason `delegation_revoked`, `delegation_early` or
            `delegation_expired`. The last two are `CLOCK_REASONS`.
    """
    if delegation.generation < newest_generation:
        raise PolicyRejected(
            "delegation_revoked",
            f"it was signed by the delegate of generation {delegation.generation}, which is "
            f"revoked: {newest_generation} was accepted here before",
        )
    if delegation.holds(now_s):
        return
    here = f"and it is {_date(now_s)} here"
    if now_s < delegation.not_before_s:
        raise PolicyRejected(
            "delegation_early",
            f"the delegate of generation {delegation.generation} that signed it begins at "
            f"{_date(delegation.not_before_s)}, {here}: set the clock, or mend its synchronization",
        )
    raise PolicyRejected(
        "delegation_expired",
        f"the delegate of generation {delegation.generation} that signed it ended at "
        f"{delegation.ends}, {here}: give the learner a new one (`shoal pki delegate`), or set "
        "this clock if it is ahead",
    )


def _date(unix_s: float) -> str:
    return (
        f"{datetime.fromtimestamp(min(max(0.0, unix_s), _END_OF_TIME_S), UTC):%Y-%m-%d %H:%M} UTC"
    )
