"""Whom a NATS server turned away, and why: read from a line of its log."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLIENT = re.compile(
    r'(?P<address>\S+):\d+ - mid:\d+ - (?:"(?P<client_id>[^"]*)" - )?(?P<rest>.*)', re.DOTALL
)
_COMMON_NAME = re.compile(r"\(CN=(?P<name>[^ ,;)]+)")
_REASONS = (
    ("TLS handshake error: tls: client didn't provide a certificate", "no_certificate"),
    ("certificate has expired or is not yet valid", "certificate_dates"),
    ("certificate signed by unknown authority", "foreign_certificate"),
    ("TLS handshake error", "tls"),
    ("authentication error", "not_admitted"),
    ("Publish Violation", "topic"),
    ("Subscription Violation", "topic"),
)
"""What the server says, and what it means; the first that fits."""


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """A connection, a message or a subscription that was refused.

    Attributes:
        reason: `no_certificate`, `foreign_certificate`, `certificate_dates`, `tls`, `not_admitted`
            (revoked, or never enrolled) or `topic` (not its own).
        address: Where it came from.
        name: The common name or the client id, as far as it was said; nothing proves it.
    """

    reason: str
    address: str
    name: str


def read_refusal(message: str) -> BrokerRefusal | None:
    """The refusal that a line of the log tells of; None if it tells of something else."""
    client = _CLIENT.fullmatch(message)
    if client is None or client["rest"].startswith("unable to connect: "):  # said twice
        return None
    rest = client["rest"]
    reason = next((reason for part, reason in _REASONS if part in rest), None)
    if reason is None:
        return None
    named = _COMMON_NAME.search(rest)
    return BrokerRefusal(
        reason, client["address"], named["name"] if named else client["client_id"] or ""
    )
