"""Says in good time that the delegation by which a learner signs policies ends."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from cloud_learner.downlink.signing import RENEW, Signer
from cloud_learner.uplink.arrivals import LEARNER
from shoal.delegation import Delegation
from shoal.errors import IdentityError
from shoal.logs import get_logger
from shoal.v1 import device_pb2

WARN_AT: Final = 1 / 3
"""Of a delegation's lifetime: when so much is left it is told, and again whenever that halved."""
LAST_WARNING_S: Final = 3600.0
LOOK_S: Final = 60.0
DAY_S: Final = 86400.0
ENDED: Final = "delegation_ended"
_log = get_logger("delegation")


class Told(Protocol):
    """Who is told; the `Fleet` is one."""

    def record(
        self, device_id: str, name: str, message: str, *, severity: device_pb2.Severity = ...
    ) -> None:
        """Notes an event."""

    def raise_condition(self, name: str, message: str) -> None:
        """Says that something is wrong until it is cleared."""


def check_signer(signer: Signer, now_s: float) -> None:
    """Checks that a learner can publish at all, before it starts.

    Raises:
        IdentityError: Its delegation has ended, or not begun.
    """
    if signer.held is not None and (problem := signer.held.problem(now_s)):
        raise IdentityError(problem)


def warnings_due(delegation: Delegation, now_s: float) -> int:
    """How many warnings should have been given of a delegation's end.

    One when a third of its time is left, one whenever what is left has halved, the last an hour
    before it ends.

    Args:
        delegation: Which.
        now_s: Unix seconds.
    """
    first_s = WARN_AT * (delegation.not_after_s - delegation.not_before_s)
    left_s = max(delegation.not_after_s - now_s, min(LAST_WARNING_S, first_s))
    if left_s > first_s or left_s <= 0:
        return 0
    return 1 + math.floor(math.log2(first_s / left_s))


async def watch_delegation(
    delegation: Delegation,
    told: Told,
    *,
    look_s: float = LOOK_S,
    clock: Callable[[], float] = time.time,
) -> None:
    """Warns of a delegation's end, and says when it has come, until cancelled."""
    _log.info("policy_signing", generation=delegation.generation, until=delegation.ends)
    given = 0
    while True:
        now_s = clock()
        due = warnings_due(delegation, now_s)
        named = f"the delegation of generation {delegation.generation}, by which policies are"
        if now_s > delegation.not_after_s:
            told.raise_condition(
                ENDED,
                f"{named} signed, ended at {delegation.ends}: nothing is published, and devices "
                f"act on with what they have; {RENEW}",
            )
        elif due > given:
            days = (delegation.not_after_s - now_s) / DAY_S
            message = f"{named} signed, ends in {days:.1f} days, at {delegation.ends}: {RENEW}"
            told.record(LEARNER, "delegation_ends", message, severity=device_pb2.SEVERITY_WARNING)
        given = max(given, due)
        await asyncio.sleep(look_s)
