"""What is the same for all hosts of one command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shoalctl.flash.ssh.plan import Places
from shoalctl.flash.ssh.preflight import Reason

POLL_S: Final = 2.0
"""How often a trial is looked at: nothing on the host could tell us through SSH."""


@dataclass(frozen=True, slots=True)
class FlashSettings:
    """What was typed.

    Attributes:
        places: Where things are on a host.
        allow: Reasons that do not refuse a host.
        wait_s: How long a trial may take until it is reported as not over; None: don't wait.
        retries: How often a lost link is made again, without anything new having come across.
        dry_run: Whether nothing is to be changed.
        poll_s: How often a trial is looked at.
    """

    places: Places = field(default_factory=Places)
    allow: frozenset[Reason] = frozenset()
    wait_s: float | None = 600.0
    retries: int = 3
    dry_run: bool = False
    poll_s: float = POLL_S
