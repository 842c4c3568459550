from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.journal.audit import Audit, Decided, Disposition, RunReport, audit_run
from shoal.errors import WireError
from shoal.ranges import Ranges
from shoal.v1 import device_pb2 as pb
from shoal.v1 import tensor_pb2

FATES = (
    "trained",
    "expired",
    "rejected",
    "spooled",
    "dropped",
    "aged",
    "settled_and_dropped",
    "settled_and_aged",
    "gone",
)


def world(fates: list[str]) -> tuple[RunReport, Decided]:
    of = {name: [seq for seq, fate in enumerate(fates) if fate == name] for name in FATES}
    trained = Ranges.of(of["trained"] + of["settled_and_dropped"] + of["settled_and_aged"])
    report = RunReport(
        produced=len(fates),
        spooled=Ranges.of(of["spooled"]),
        dropped=Ranges.of(of["dropped"] + of["settled_and_dropped"]),
        expired=Ranges.of(of["aged"] + of["settled_and_aged"]),
    )
    return report, Decided(trained, Ranges.of(of["expired"]), Ranges.of(of["rejected"]))


@given(st.lists(st.sampled_from(FATES)))
def test_is_balanced_exactly_when_no_chunk_is_gone(fates: list[str]) -> None:
    audit = audit_run(*world(fates))
    assert audit.missing == fates.count("gone")
    assert audit.balanced == ("gone" not in fates)
    assert audit.dropped == fates.count("dropped")
    assert audit.expired == fates.count("expired") + fates.count("aged")
    settled_after_all = fates.count("settled_and_dropped") + fates.count("settled_and_aged")
    assert audit.trained == fates.count("trained") + settled_after_all


@given(st.lists(st.sampled_from(FATES[:6])), st.data())
def test_stays_balanced_when_the_learner_knows_more_than_the_report(
    fates: list[str], data: st.DataObject
) -> None:
    report, decided = world(fates)
    for seq in [*report.spooled, *range(len(fates), len(fates) + 3)]:
        if data.draw(st.booleans()):
            fate = data.draw(st.sampled_from(Disposition))
            decided = decided.with_chunks(Ranges.of([seq]), fate)
    assert audit_run(report, decided).balanced


def test_a_loss_on_one_device_does_not_hide_behind_another() -> None:
    whole = audit_run(*world(["trained", "spooled"]))
    lossy = audit_run(*world(["trained", "gone"]))
    assert whole.balanced
    assert not whole.plus(lossy).balanced
    assert not whole.plus(lossy).to_pb().balanced
    assert Audit().balanced


def test_devices_that_claim_more_than_a_message_holds_do_not_silence_the_audit() -> None:
    liar = Audit(produced=2**62)
    told = liar.plus(liar).plus(liar).plus(liar).plus(liar).to_pb()
    assert told.produced == 2**64 - 1


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(Disposition))))
def test_a_chunk_has_one_disposition_at_any_time(moves: list[tuple[int, Disposition]]) -> None:
    decided, last = Decided(), {}
    for seq, disposition in moves:
        decided = decided.with_chunks(Ranges.of([seq]), disposition)
        last[seq] = disposition
    assert decided.settled.count() == len(last)
    assert sum(decided.of(each).count() for each in Disposition) == len(last)
    assert all(decided.of(disposition).contains(seq) for seq, disposition in last.items())


@pytest.mark.parametrize(
    "ledger",
    [
        pb.RunLedger(produced=2**63),
        pb.RunLedger(produced=4, spooled=[tensor_pb2.Span(start=3, stop=3)]),
        pb.RunLedger(produced=4, dropped=[tensor_pb2.Span(start=3, stop=1)]),
    ],
)
def test_refuses_a_ledger_that_makes_no_sense(ledger: pb.RunLedger) -> None:
    with pytest.raises(WireError):
        RunReport.from_pb(ledger)


def test_ignores_what_a_ledger_says_of_chunks_that_were_not_made() -> None:
    spans = [tensor_pb2.Span(start=0, stop=9)]
    assert RunReport.from_pb(pb.RunLedger(produced=4, spooled=spans)).spooled == Ranges.upto(4)


@given(st.lists(st.lists(st.sampled_from(FATES)), max_size=8))
def test_the_sum_of_many_audits_is_what_adding_them_one_by_one_gives(
    worlds: list[list[str]],
) -> None:
    audits = [audit_run(*world(fates)) for fates in worlds]
    one_by_one = Audit()
    for audit in audits:
        one_by_one = one_by_one.plus(audit)
    assert Audit.sum(audits) == one_by_one
