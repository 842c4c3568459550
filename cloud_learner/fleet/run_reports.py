"""What devices said of their runs, and what became of every chunk of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cloud_learner.journal.audit import Audit, Decided, RunKey, RunReport, audit_run


@dataclass(frozen=True, slots=True)
class _Audited:
    """An audit and the two immutable values it was made from."""

    report: RunReport
    decided: Decided
    audit: Audit


class RunReports:
    """The newest report of each run. Used from the event loop.

    reports = RunReports(journal.decided, journal.reports())
    reports.note(telemetry.runs)
    reports.audits()["pi-1"].balanced
    """

    def __init__(
        self, decided: Callable[[RunKey], Decided], before: Mapping[RunKey, RunReport]
    ) -> None:
        """Goes on with what is known.

        Args:
            decided: What was decided about the chunks of a run.
            before: What devices said before the learner restarted.
        """
        self._decided = decided
        self._reports = dict(before)
        self._unsaved: set[RunKey] = set()
        self._audited: dict[RunKey, _Audited] = {}

    def note(self, said: Mapping[RunKey, RunReport]) -> None:
        """Takes what a device says; one that comes late changes nothing."""
        for run, report in said.items():
            known = self._reports.get(run)
            if known is None or (report.produced >= known.produced and report != known):
                self._reports[run] = report
                self._unsaved.add(run)

    def take_unsaved(self) -> dict[RunKey, RunReport]:
        """What devices said of their runs since the last call."""
        unsaved = {run: self._reports[run] for run in self._unsaved}
        self._unsaved.clear()
        return unsaved

    def put_unsaved(self, reports: Mapping[RunKey, RunReport]) -> None:
        """Gives back what could not be saved."""
        self._unsaved.update(reports)

    def audits(self) -> dict[str, Audit]:
        """What became of the chunks of each device that reported on them."""
        by_device: dict[str, Audit] = {}
        for run, report in self._reports.items():
            audit, before = self._audit_of(run, report), by_device.get(run.device_id)
            by_device[run.device_id] = audit if before is None else before.plus(audit)
        return by_device

    def total(self) -> Audit:
        """What became of all of them."""
        return Audit.sum(self._audit_of(run, report) for run, report in self._reports.items())

    def _audit_of(self, run: RunKey, report: RunReport) -> Audit:
        decided = self._decided(run)
        known = self._audited.get(run)
        if known is None or known.report is not report or known.decided is not decided:
            known = _Audited(report, decided, audit_run(report, decided))
            self._audited[run] = known
        return known.audit
