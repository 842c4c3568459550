"""What a certificate's dates and the clocks say together: pure rules, no clock and no file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from cryptography import x509

RENEW_AT: Final = 2 / 3
"""Of a certificate's lifetime: then it is renewed."""
JITTER: Final = 1 / 15
"""Of a certificate's lifetime, to either side: a fleet that was enrolled at once renews in turn."""
MAX_SKEW_S: Final = 300.0
"""Certificates begin this long before they are issued, so a clock may be so much behind."""
_UNITS: Final = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


class Trouble(StrEnum):
    """Why this device can't prove who it is, if it can't."""

    NONE = "none"
    CLOCK = "clock_wrong"
    NOT_YET_VALID = "certificate_not_yet_valid"
    EXPIRED = "certificate_expired"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, and one line for a person."""

    trouble: Trouble
    message: str = ""


@dataclass(frozen=True, slots=True)
class Dates:
    """When a certificate is valid, Unix seconds."""

    first_s: float
    last_s: float

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """Of a certificate."""
        return cls(
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
        )

    def renewal_s(self, draw: float) -> float:
        """When to renew it, Unix seconds.

        Args:
            draw: Of this device for this certificate, uniform in [0, 1).
        """
        share = RENEW_AT + JITTER * (2.0 * draw - 1.0)
        return self.first_s + share * (self.last_s - self.first_s)

    def holds(self, now_s: float) -> bool:
        """Whether it is valid at a time."""
        return self.first_s <= now_s <= self.last_s


def diagnose(dates: Dates, now_s: float, skew_s: float | None) -> Diagnosis:
    """What this device's clock and its certificate's dates mean.

    Args:
        dates: Of the certificate.
        now_s: This device's clock, Unix seconds.
        skew_s: How far the server's clock is ahead of it; None if the server was not heard.
    """
    go_on = "acting and spooling go on"
    if skew_s is not None and abs(skew_s) > MAX_SKEW_S:
        way = "behind" if skew_s > 0 else "ahead of"
        return Diagnosis(
            Trouble.CLOCK,
            f"this device's clock is {length(abs(skew_s))} {way} the fleet's: set it, or mend its "
            f"time synchronization; {go_on}",
        )
    if now_s < dates.first_s:
        early = length(dates.first_s - now_s)
        return Diagnosis(
            Trouble.NOT_YET_VALID,
            f"the certificate begins in {early} by this device's clock, which must be behind: set "
            f"it, or mend its time synchronization; {go_on}",
        )
    if now_s > dates.last_s:
        late = length(now_s - dates.last_s)
        cause = "renewing it" if skew_s is not None else "or this device's clock is ahead: set it"
        return Diagnosis(
            Trouble.EXPIRED,
            f"the certificate ended {late} ago by this device's clock, {cause}; {go_on}",
        )
    return Diagnosis(Trouble.NONE)


def length(seconds: float) -> str:
    """A length of time for people, in its largest unit: `3 days`."""
    for size_s, unit in _UNITS:
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return "less than a second"
