"""What happened in the fleet: ordered, bounded, counted, and no flood pushes out the rest."""

from __future__ import annotations

import pytest
from fleet_world import LOST, NEW, ONLINE, SPEC, World, status
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop

from cloud_learner.fleet import event_log
from cloud_learner.fleet.event_log import EventLog, LoggedEvent, Query
from cloud_learner.uplink.arrivals import Birth
from shoal.v1 import device_pb2 as pb

DEVICES = st.sampled_from(["pi-1", "pi-2", "broker", "server", "learner"])
EVENTS = st.builds(
    pb.Event,
    device_id=DEVICES,
    severity=st.sampled_from([pb.SEVERITY_INFO, pb.SEVERITY_WARNING]),
    name=st.sampled_from(["device_lost", "client_refused", "Not A Name", "", "x" * 65]),
    message=st.text(max_size=3),
    fields=st.dictionaries(
        st.sampled_from(["device_id", "reason", "count", "other"]), st.text(max_size=5)
    ),
)


def event(by: str, name: str = "hello", *, bad: bool = False, **fields: str) -> pb.Event:
    severity = pb.SEVERITY_WARNING if bad else pb.SEVERITY_INFO
    return pb.Event(device_id=by, name=name, severity=severity, fields=fields)


def names(found: list[LoggedEvent]) -> list[str]:
    return [logged.event.name for logged in found]


@given(st.lists(EVENTS, max_size=60))
def test_the_newest_come_first_and_what_came_after_a_place_comes_in_order(
    events: list[pb.Event],
) -> None:
    log = EventLog(clock=lambda: 0.0)
    for each in events:
        log.add(each)
    newest = log.newest(Query(), limit=1000)
    assert [logged.place for logged in newest] == list(range(len(events), 0, -1))
    after = log.after(len(events) // 2, Query())
    assert [logged.place for logged in after] == list(range(len(events) // 2 + 1, len(events) + 1))
    assert len(log.newest(Query(), limit=3)) == min(3, len(events))


@given(st.lists(EVENTS, max_size=60), DEVICES)
def test_a_query_gives_exactly_what_it_asks_for(events: list[pb.Event], about: str) -> None:
    log = EventLog(clock=lambda: 0.0)
    logged = [log.add(each) for each in events]
    kinds = frozenset({"client_refused"})
    found = log.newest(Query(about=about, kinds=kinds), limit=1000)
    wanted = [e for e in logged if e.about == about and e.event.name == "client_refused"]
    assert found == wanted[::-1]


def test_a_flood_of_one_device_pushes_out_only_its_own_of_that_severity() -> None:
    log = EventLog(clock=lambda: 0.0)
    log.add(event("pi-1", "first"))
    log.add(event("pi-2", "bad_one", bad=True))
    for _ in range(3 * event_log.MAX_OF_A_KIND):
        log.add(event("pi-2", "noise"))
    found = names(log.newest(Query(), limit=10_000))
    assert found.count("noise") == event_log.MAX_OF_A_KIND
    assert found[-2:] == ["bad_one", "first"]


def test_all_of_them_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_EVENTS", 10)
    log = EventLog(clock=lambda: 0.0)
    for number in range(25):
        log.add(event(f"pi-{number}"))
    found = log.newest(Query(), limit=100)
    assert [logged.about for logged in found] == [f"pi-{number}" for number in range(24, 14, -1)]
    assert len(log._places) == 10


def test_a_service_names_whom_its_event_is_about_and_a_device_speaks_of_itself_alone() -> None:
    log = EventLog(clock=lambda: 0.0)
    told = log.add(event("broker", "client_refused", device_id="pi-1", reason="topic"))
    assert (told.source, told.about, told.kind) == ("broker", "pi-1", "client_refused.topic")
    forged = log.add(event("pi-2", "client_refused", device_id="pi-1"))
    assert (forged.source, forged.about) == ("device", "pi-2")
    assert log.add(event("server", "refused")).source == "enrollment"


def test_counts_are_those_of_services_and_one_each_of_devices() -> None:
    log = EventLog(clock=lambda: 0.0)
    log.add(event("broker", "client_refused", reason="topic", count="7"))
    log.add(event("broker", "client_refused", reason="topic", count="-1"))
    log.add(event("pi-1", "policy_rejected", reason="signature", count="1000000"))
    assert log.counters == {
        "broker.client_refused.topic": 8,
        "device.policy_rejected.signature": 1,
    }


def test_kinds_that_devices_invent_are_counted_together_beyond_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "MAX_COUNTERS", 3)
    log = EventLog(clock=lambda: 0.0)
    for number in range(10):
        log.add(event("pi-1", f"kind_{number}"))
    assert log.counters["device.other"] == 7
    assert len(log.counters) == 4


def test_long_texts_are_cut_and_what_is_no_name_is_other() -> None:
    log = EventLog(clock=lambda: 0.0)
    long = event("pi-1", "Shouting!", reason="\x1b[31m" * 100)
    long.message = "m" * 100_000
    for number in range(100):
        long.fields[f"a{number}"] = "v" * 1000
    kept = log.add(long).event
    assert (kept.name, kept.fields.get("reason", "other")) == ("other", "other")
    assert len(kept.SerializeToString()) < 6_000


@on_loop
async def test_a_device_that_comes_and_is_lost_is_told_once_each() -> None:
    world = World()
    for _ in range(2):
        world.fleet.note_status(Birth(status(ONLINE), SPEC))
    world.fleet.note_status(Birth(status(LOST, reason="connection lost"), None))
    found = world.fleet.log.newest(Query(about="pi-1"), limit=10)
    assert names(found) == ["device_offline_lost", "device_online"]
    assert found[0].event.severity == pb.SEVERITY_WARNING


@on_loop
async def test_a_service_of_the_fleet_is_no_device_and_an_event_that_came_twice_is_one() -> None:
    world = World()
    told = pb.Event(device_id="broker", run_id=NEW, event_seq=1, name="client_refused")
    world.fleet.note_event(told)
    world.fleet.note_event(told)
    assert world.fleet.devices() == []
    assert world.fleet.training().devices_online == 0
    assert world.fleet.log.counters == {"broker.client_refused": 1}
