"""Whom the broker and the enrolment refused, until the fleet was told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sim import on_loop

from shoal.v1 import device_pb2 as pb
from shoalctl.broker.refusals import BrokerRefusal
from shoalctl.enrollment.store import EnrollmentStore
from shoalctl.events.broker_outbox import MAX_WAITING, TELL_AGAIN_S, BrokerOutbox, claimed_name
from shoalctl.events.enrollment_outbox import EnrollmentOutbox

RUN_ID = bytes(range(16))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("pi-1", "pi-1"),
        ("pi-1-03093fae", "pi-1"),
        ("", ""),
        ("learner", ""),
        ("\x1b[2J", ""),
        ("deadbeef", "deadbeef"),
        ("x" * 64, ""),
    ],
)
def test_a_name_is_what_an_agent_calls_its_client_or_none(name: str, device: str) -> None:
    assert claimed_name(BrokerRefusal("topic", "10.0.0.7", name)) == device


@on_loop
async def test_refusals_of_the_broker_come_at_once_then_together_and_stay_until_settled() -> None:
    now = [0.0]
    outbox = BrokerOutbox(clock=lambda: now[0], wall_clock=lambda: 7.0)
    refusal = BrokerRefusal("not_admitted", "10.0.0.7", "pi-9-03093fae")
    for _ in range(3):
        outbox.note(refusal, "its line")
    (first,) = await outbox.wait()
    assert (first.device_id, first.name, first.sent_unix_ms) == ("broker", "client_refused", 7000)
    assert first.fields == {
        "reason": "not_admitted",
        "count": "3",
        "address": "10.0.0.7",
        "device_id": "pi-9",
    }
    assert await outbox.wait() == [first], "it was not settled"
    outbox.settle(first)
    waiting = asyncio.ensure_future(outbox.wait())
    await asyncio.sleep(0)
    outbox.note(refusal, "again")
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    now[0] = TELL_AGAIN_S
    (second,) = await outbox.wait()
    assert second.fields["count"] == "1"
    assert second.event_seq == first.event_seq + 1


@on_loop
async def test_events_that_nobody_takes_are_bounded() -> None:
    now = [0.0]
    outbox = BrokerOutbox(clock=lambda: now[0])
    for number in range(MAX_WAITING + 50):
        outbox.note(BrokerRefusal("tls", f"10.0.0.{number % 200}", ""), "x")
        now[0] += TELL_AGAIN_S
        found = await outbox.wait()
    assert len(found) == MAX_WAITING


@on_loop
async def test_events_of_enrolment_are_taken_from_its_database_each_until_it_was_posted(
    tmp_path: Path,
) -> None:
    def note(store: EnrollmentStore, name: str, severity: str = "info", **fields: str) -> None:
        store.add_event(name, "said", severity=severity, device_id="pi-1", now_s=7.0, **fields)

    path = tmp_path / "enrollment.sqlite"
    with EnrollmentStore(path) as store, EnrollmentStore(path) as command:
        outbox = EnrollmentOutbox(store, run_id=RUN_ID, look_s=0.001)
        note(store, "refused", "warning", reason="token_used", address="10.0.0.7")
        (first,) = await outbox.wait()
        assert (first.device_id, first.run_id, first.event_seq) == ("server", RUN_ID, 1)
        assert first.severity == pb.SEVERITY_WARNING
        assert first.fields == {
            "reason": "token_used",
            "address": "10.0.0.7",
            "device_id": "pi-1",
        }
        outbox.settle(first)
        waiting = asyncio.ensure_future(outbox.wait())
        note(command, "revoked")  # by an operator's command, in a process of its own
        (second,) = await waiting
        assert second.name == "revoked"
    with EnrollmentStore(path) as again:
        outbox = EnrollmentOutbox(again, run_id=RUN_ID)
        assert [each.event_seq for each in await outbox.wait()] == [2], "as after a crash"
