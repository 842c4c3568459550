"""Enrolment tokens: how they look, and whether one may be used."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from shoalctl.enrollment.refusal import EnrollmentRefused, Reason

SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
_TOKEN = re.compile(r"(?P<id>[0-9a-f]{8})\.(?P<secret>[A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that a device trades for a certificate, and the id that operators know it by."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        """As it is handed out."""
        return f"{self.id}.{self.secret}"

    @property
    def digest(self) -> bytes:
        """What is stored of it. The secret is 256 random bits: no salt, no slow hash is needed."""
        return hashlib.sha256(self.secret.encode()).digest()


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is known of a token.

    Attributes:
        id: What operators call it.
        digest: Of its secret, sha256.
        device_id: The only name it enrols; None: any.
        uses: How many devices it may enrol.
        used: How many it has.
        created_s: Unix time.
        expires_s: Unix time.
        revoked: Whether an operator took it back.
        replace: Whether it may take the name of an enrolled device, whose certificates end.
    """

    id: str
    digest: bytes
    device_id: str | None
    uses: int
    used: int
    created_s: float
    expires_s: float
    revoked: bool
    replace: bool

    def state(self, now_s: float) -> str:
        """`valid`, `revoked`, `used` or `expired`."""
        if self.revoked:
            return "revoked"
        if self.used >= self.uses:
            return "used"
        return "expired" if now_s >= self.expires_s else "valid"


def new_token() -> Token:
    """A token that nobody can guess."""
    return Token(secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES))


def parse_token(text: str) -> Token | None:
    """The token in a text; None if it is none."""
    match = _TOKEN.fullmatch(text.strip())
    return Token(match["id"], match["secret"]) if match else None


def judge_token(
    token: Token | None, record: TokenRecord | None, device_id: str, *, now_s: float
) -> TokenRecord:
    """Returns the record of a token that may enrol a device now.

    Args:
        token: As it was sent; None if it was none.
        record: What is stored under its id; None if nothing is.
        device_id: Who sent it.
        now_s: Unix time.

    Raises:
        EnrollmentRefused: It may not; the message says nothing that a guesser could use.
    """
    if token is None or record is None or not hmac.compare_digest(token.digest, record.digest):
        raise EnrollmentRefused(
            Reason.TOKEN_UNKNOWN,
            "the token is not one of this fleet: make one with `shoal enroll token create`",
            device_id=device_id,
        )
    again = "make another with `shoal enroll token create`"
    match record.state(now_s):
        case "revoked":
            raise EnrollmentRefused(
                Reason.TOKEN_REVOKED, f"token {token.id} was revoked: {again}", device_id=device_id
            )
        case "used":
            raise EnrollmentRefused(
                Reason.TOKEN_USED, f"token {token.id} was used: {again}", device_id=device_id
            )
        case "expired":
            raise EnrollmentRefused(
                Reason.TOKEN_EXPIRED, f"token {token.id} has expired: {again}", device_id=device_id
            )
    if record.device_id is not None and record.device_id != device_id:
        raise EnrollmentRefused(
            Reason.TOKEN_OF_ANOTHER,
            f"token {token.id} is for another device than {device_id}: {again}",
            device_id=device_id,
        )
    return record
