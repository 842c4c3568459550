"""A device's own certificate: its chain, its dates, what it may be used for. No socket, no file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from edge_agent.checks.finding import Finding, Level
from edge_agent.enrollment.validity import Dates, length

OVERDUE: Final = 0.8
"""The part of a certificate's life after which it should have been renewed: that is at two thirds,
give or take a fifteenth."""


def judge_certificate(
    chain: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    now_s: float,
    *,
    renews: bool,
) -> Finding:
    """Whether a chain leads to a root, and how long its certificate lives.

    Dates that do not hold are the clock's finding: it says which of the two is wrong.

    Args:
        chain: The device's, then what leads to the root.
        roots: Of the fleet.
        now_s: This device's clock, Unix seconds.
        renews: Whether the agent renews it by itself.
    """
    name, leaf = "certificate", chain[0]
    broken = _broken(chain, roots)
    if broken:
        return Finding(name, Level.FAULT, f"{broken}: enrol anew", 2)
    usages = _usages(leaf)
    if usages is not None and ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
        detail = "it may not be used by a client of a server: issue it again"
        return Finding(name, Level.FAULT, detail, 2)
    dates = Dates.of(leaf)
    left_s = dates.last_s - now_s
    figures = {"left_s": left_s}
    last = leaf.not_valid_after_utc
    said = f"chains to the fleet's CA; valid until {last:%Y-%m-%d %H:%M} UTC"
    if not dates.holds(now_s):
        detail = f"{said}; not by this device's clock: see there"
        return Finding(name, Level.WARN, detail, figures=figures)
    said += f", for {length(left_s)}"
    late = now_s > dates.first_s + OVERDUE * (dates.last_s - dates.first_s)
    if late:
        cure = (
            "it should have been renewed: see whether the enrollment server answers"
            if renews
            else "nothing renews it: issue another in time, or enrol the device"
        )
        return Finding(name, Level.WARN, f"{said}; {cure}", figures=figures)
    return Finding(name, Level.OK, said, figures=figures)


def _broken(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> str:
    """Where a chain breaks; empty if nowhere."""
    above = chain[-1]
    for lower, upper in itertools.pairwise(chain):
        if not _issued(lower, upper):
            return "cert.pem holds a chain whose certificates did not issue one another"
    if not any(_issued(above, root) or above == root for root in roots):
        return "its chain does not lead to ca.pem: they are of two fleets"
    return ""


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _usages(certificate: x509.Certificate) -> x509.ExtendedKeyUsage | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
