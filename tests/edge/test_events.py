"""Events are few, numbered, and never the reason that anything else stops."""

from __future__ import annotations

from edge_agent.events import MAX_WAITING, Events
from shoal.v1 import device_pb2 as pb

RUN = bytes(16)


def test_events_are_numbered_and_come_out_once_in_order() -> None:
    events = Events("pi-1", RUN, clock=lambda: 2.0)
    events.emit(pb.SEVERITY_WARNING, "policy_rejected", "bad", reason="signature", version=3)
    events.emit(pb.SEVERITY_INFO, "learner_back", "good")
    first, second = events.take()
    assert (first.device_id, first.run_id, first.event_seq, second.event_seq) == ("pi-1", RUN, 0, 1)
    assert dict(first.fields) == {"reason": "signature", "version": "3"}
    assert first.sent_unix_ms == 2000
    assert events.take() == []


def test_too_many_events_cost_the_oldest_and_are_counted() -> None:
    events = Events("pi-1", RUN, clock=lambda: 0.0)
    for _ in range(MAX_WAITING + 3):
        events.emit(pb.SEVERITY_INFO, "noise", "")
    taken = events.take()
    assert [event.event_seq for event in taken] == list(range(3, MAX_WAITING + 3))
    assert events.forgotten == 3


def test_a_listener_hears_of_each_event_while_it_listens() -> None:
    events = Events("pi-1", RUN, clock=lambda: 0.0)
    heard: list[int] = []
    with events.listening(lambda: heard.append(1)):
        events.emit(pb.SEVERITY_INFO, "one", "")
    events.emit(pb.SEVERITY_INFO, "two", "")
    assert heard == [1]
