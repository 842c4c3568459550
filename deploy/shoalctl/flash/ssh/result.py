"""How it went on one host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from shoalctl.flash.ssh.plan import Step


class Outcome(StrEnum):
    """In one word."""

    COMMITTED = "committed"
    """It acts with the bundle."""
    UNCHANGED = "unchanged"
    """It did before."""
    ON_TRIAL = "on_trial"
    """It was switched to, and has not acted yet."""
    PLANNED = "planned"
    """`--dry-run`."""
    ROLLED_BACK = "rolled_back"
    """It did not act, and the slot before runs again; or a rollback was asked for."""
    REFUSED = "refused"
    """The host is not fit for it; nothing was changed."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One line of a dry run: what is done, and the command that the host would run."""

    step: Step
    says: str
    command: str


@dataclass(frozen=True, slots=True)
class HostResult:
    """How it went on one host.

    Attributes:
        host: Its name.
        login: How it was logged in to.
        outcome: In one word.
        ok: Whether that is what was asked for.
        step: The last one that was begun.
        reason: Why, or what to know; empty if there is nothing to say.
        refusals: Slugs, where the host was refused.
        exit_code: What a command for this host alone ends with.
        bundle_version: Of the bundle that it was given.
        digest: Of its manifest, hexadecimal.
        slot: The slot it is in.
        sent_bytes: Uploaded now.
        kept_bytes: Uploaded by an earlier try.
        reconnects: How often the link was lost.
        duration_s: How long it took.
        planned: What a dry run would have done.
    """

    host: str
    login: str
    outcome: Outcome
    ok: bool
    step: Step
    reason: str = ""
    refusals: tuple[str, ...] = ()
    exit_code: int = 0
    bundle_version: str | None = None
    digest: str | None = None
    slot: str | None = None
    sent_bytes: int = 0
    kept_bytes: int = 0
    reconnects: int = 0
    duration_s: float = 0.0
    planned: tuple[PlannedCommand, ...] = ()

    def with_failure(self, exit_code: int, refusals: tuple[str, ...] = ()) -> HostResult:
        """The same, as a failure of that kind."""
        return replace(self, ok=False, exit_code=exit_code, refusals=refusals)
