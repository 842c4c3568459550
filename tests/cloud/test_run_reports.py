"""Reports of runs: the newest counts, each is saved once, and the audit follows both sides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.fleet.run_reports import RunReports
from cloud_learner.journal.audit import Audit, Decided, Disposition, RunKey, RunReport
from shoal.ranges import Ranges

RUN, OTHER = RunKey("pi-1", bytes(16)), RunKey("pi-1", bytes([1] * 16))


def report(produced: int) -> RunReport:
    """All that was made waits on the disk."""
    return RunReport(produced, Ranges.upto(produced), Ranges())


@given(st.lists(st.integers(0, 9), min_size=1))
def test_a_report_that_comes_late_changes_nothing(counts: list[int]) -> None:
    reports = RunReports(lambda _: Decided(), {})
    for produced in counts:
        reports.note({RUN: report(produced)})
    assert reports.total().produced == max(counts)


def test_what_could_not_be_saved_is_saved_the_next_time() -> None:
    reports = RunReports(lambda _: Decided(), {OTHER: report(4)})
    assert reports.take_unsaved() == {}  # it comes from there
    reports.note({RUN: report(3)})
    taken = reports.take_unsaved()
    assert taken == {RUN: report(3)}
    assert reports.take_unsaved() == {}
    reports.put_unsaved(taken)
    assert reports.take_unsaved() == taken


def test_runs_of_a_device_are_audited_together_as_the_learner_decides() -> None:
    decided = {RUN: Decided(), OTHER: Decided()}
    reports = RunReports(decided.__getitem__, {RUN: report(3), OTHER: report(2)})
    assert reports.audits() == {"pi-1": Audit(produced=5, in_flight=5)}
    decided[RUN] = decided[RUN].with_chunks(Ranges.upto(2), Disposition.TRAINED)
    assert reports.audits() == {"pi-1": Audit(produced=5, trained=2, in_flight=3)}
    assert reports.total() == reports.audits()["pi-1"]
