"""How far it is on one host, over all connections to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.errors import ShoalError
from shoalctl.flash.ssh.host import Host
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.plan import Step
from shoalctl.flash.ssh.preflight import HostRefused
from shoalctl.flash.ssh.result import HostResult, Outcome
from shoalctl.flash.ssh.trial import Verdict

_GOOD = frozenset({Outcome.COMMITTED, Outcome.UNCHANGED, Outcome.ON_TRIAL, Outcome.PLANNED})


@dataclass(slots=True)
class Way:
    """What was done on a host so far, and how it is told.

    Attributes:
        host: Where.
        clock: Seconds, of a monotonic clock.
        began_s: When it began.
        step: The last one that was begun.
        bundle: Which the host gets, once that is known.
        sent_bytes: Uploaded now.
        kept_bytes: Uploaded by an earlier command.
        reconnects: How often the link was lost.
        first: How the bundle stood there before anything was done.
        switched: Whether another slot was made current.
        sudo_password: What was typed.
        note: What is told when all went well.
    """

    host: Host
    clock: Callable[[], float]
    began_s: float
    step: Step = Step.CONNECT
    bundle: OfflineBundle | None = None
    sent_bytes: int = 0
    kept_bytes: int | None = None
    reconnects: int = 0
    first: Verdict | None = None
    switched: bool = False
    sudo_password: str | None = field(default=None, repr=False)
    note: str = ""

    def result(self, outcome: Outcome, reason: str = "", *, slot: str | None = None) -> HostResult:
        """How it ended."""
        ok = outcome in _GOOD
        said = "; ".join(part for part in (reason, self.note if ok else "") if part)
        bundle = self.bundle
        return HostResult(
            host=self.host.name,
            login=self.host.login,
            outcome=outcome,
            ok=ok,
            step=self.step,
            reason=said,
            exit_code=int(not ok),
            bundle_version=bundle.manifest.version if bundle else None,
            digest=bundle.manifest.digest if bundle else None,
            slot=slot,
            sent_bytes=self.sent_bytes,
            kept_bytes=self.kept_bytes or 0,
            reconnects=self.reconnects,
            duration_s=self.clock() - self.began_s,
        )

    def failure(self, error: ShoalError) -> HostResult:
        """How it ended, with an error."""
        if isinstance(error, HostRefused):
            slugs = tuple(refusal.reason.value for refusal in error.refusals)
            return self.result(Outcome.REFUSED, str(error)).with_failure(error.exit_code, slugs)
        return self.result(Outcome.FAILED, str(error)).with_failure(error.exit_code)
