from __future__ import annotations

from sim import on_loop

from cloud_learner.relay.active_reports import ActiveReport, ActiveReports


def report(device_id: str, version: int) -> ActiveReport:
    return ActiveReport(device_id, bytes(16), version, bytes(32))


@on_loop
async def test_the_latest_report_of_a_device_takes_the_place_of_an_earlier_one() -> None:
    reports = ActiveReports()
    for version in (1, 2, 3):
        reports.note(report("pi-1", version))
    reports.note(report("pi-2", 1))
    assert await reports.take(8) == [report("pi-1", 3), report("pi-2", 1)]
    assert len(reports) == 0


@on_loop
async def test_a_report_that_could_not_be_told_waits_again_unless_a_newer_one_came() -> None:
    reports = ActiveReports()
    reports.note(report("pi-1", 1))
    reports.note(report("pi-2", 1))
    taken = await reports.take(8)
    reports.note(report("pi-2", 2))
    for each in taken:
        reports.give_back(each)
    assert await reports.take(8) == [report("pi-2", 2), report("pi-1", 1)]


@on_loop
async def test_beyond_its_capacity_the_one_that_waits_the_longest_is_forgotten_and_counted() -> (
    None
):
    reports = ActiveReports(capacity=2)
    for name in ("pi-1", "pi-2", "pi-3"):
        reports.note(report(name, 1))
    assert reports.forgotten == 1
    assert await reports.take(1) == [report("pi-2", 1)]
