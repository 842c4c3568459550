"""Why somebody does not become, or stay, a member of the fleet."""

from __future__ import annotations

from enum import StrEnum

from shoal.errors import ShoalError


class Reason(StrEnum):
    """What was wrong with a request; events and counters carry it."""

    MALFORMED = "malformed"
    NAME = "name"
    CHALLENGE = "challenge"
    PROOF = "proof"
    TOKEN_MISSING = "token_missing"  # noqa: S105 - a reason, not a secret
    TOKEN_UNKNOWN = "token_unknown"  # noqa: S105
    TOKEN_EXPIRED = "token_expired"  # noqa: S105
    TOKEN_USED = "token_used"  # noqa: S105
    TOKEN_REVOKED = "token_revoked"  # noqa: S105
    TOKEN_OF_ANOTHER = "token_of_another"  # noqa: S105
    NAME_TAKEN = "name_taken"
    NAME_REQUESTED = "name_requested"
    DENIED = "denied"
    REVOKED = "revoked"
    FOREIGN_CERTIFICATE = "foreign_certificate"
    EXPIRED = "expired"
    TOO_MANY_REQUESTS = "too_many_requests"
    RATE = "rate"


class EnrollmentRefused(ShoalError):
    """A request that was not granted.

    Attributes:
        reason: What was wrong.
        device_id: Whom it was for, as far as it was said.
    """

    exit_code = 2

    def __init__(self, reason: Reason, message: str, *, device_id: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.device_id = device_id


def name_taken(device_id: str, *, revoked: bool) -> EnrollmentRefused:
    """Somebody else has, or had, the name."""
    what = "was revoked" if revoked else "is enrolled already"
    return EnrollmentRefused(
        Reason.REVOKED if revoked else Reason.NAME_TAKEN,
        f"a device named {device_id} {what}, with another key: choose another name, or say that "
        f"this device replaces it: `shoal enroll token create --device {device_id} --replace`",
        device_id=device_id,
    )
