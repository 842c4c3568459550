"""What happened in the fleet outlives the learner that heard of it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop, until

from cloud_learner.fleet import event_log, event_store
from cloud_learner.fleet.event_log import EventLog, LoggedEvent, Query
from cloud_learner.fleet.event_store import EventStore, save_events
from shoal.errors import EventStoreError
from shoal.v1 import device_pb2 as pb


class Clock:
    """Monotonic seconds that begin anew with a machine, and the wall's, that go on."""

    def __init__(self) -> None:
        self.booted_s = 1_000.0
        self.wall_s = 5_000.0

    def monotonic(self) -> float:
        return self.wall_s - self.booted_s


def opened(path: Path, clock: Clock) -> tuple[EventStore, EventLog]:
    store = EventStore(path, clock=clock.monotonic, wall=lambda: clock.wall_s)
    log = EventLog(clock=clock.monotonic)
    store.fill(log)
    return store, log


def event(device: str, name: str = "hello") -> pb.Event:
    return pb.Event(device_id=device, name=name, message="m", fields={"reason": "why"})


def kept(log: EventLog) -> list[LoggedEvent]:
    return log.newest(Query(), limit=100_000)


def test_a_log_that_is_opened_again_has_the_same_events_at_their_age(tmp_path: Path) -> None:
    clock = Clock()
    store, log = opened(tmp_path / "events.db", clock)
    with store:
        log.add(event("pi-1"))
        log.add(event("broker", "client_refused"), by="broker")
        store.save(store.unsaved(log))
        first = log.log_id
        before = kept(log)
    clock.wall_s += 60.0
    clock.booted_s = clock.wall_s - 5.0  # another boot
    store, log = opened(tmp_path / "events.db", clock)
    with store:
        after = kept(log)
        assert [(each.place, each.event, each.source, each.about) for each in after] == [
            (each.place, each.event, each.source, each.about) for each in before
        ]
        assert [clock.monotonic() - each.at_s for each in after] == pytest.approx([60.0, 60.0])
        assert log.log_id == first


def test_places_go_on_above_what_a_learner_gave_out_before_it_was_killed(tmp_path: Path) -> None:
    clock = Clock()
    store, log = opened(tmp_path / "events.db", clock)
    log.add(event("pi-1"))
    store.save(store.unsaved(log))
    lost = log.add(event("pi-1", "not_saved"))
    store, log = opened(tmp_path / "events.db", clock)
    with store:
        assert log.add(event("pi-1")).place > lost.place
        assert [each.event.name for each in log.after(lost.place, Query())] == ["hello"]


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=6))
def test_the_file_holds_what_the_log_keeps_and_nothing_else(batches: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "MAX_EVENTS", 7)
        patch.setattr(event_log, "MAX_OF_A_KIND", 3)
        store, log = opened(Path(":memory:"), Clock())
        with store:
            for batch in batches:
                for device in batch:
                    log.add(event(f"pi-{device}"))
                store.save(store.unsaved(log))
                again = EventLog(clock=lambda: 0.0)
                store.fill(again)
                assert [each.place for each in kept(again)] == [each.place for each in kept(log)]


def test_a_file_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    store, log = opened(path, Clock())
    with store:
        log.add(event("pi-1"))
        store.save(store.unsaved(log))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET event = x'ff'")
    with pytest.raises(EventStoreError, match="move it away"):
        opened(path, Clock())


@on_loop
async def test_events_are_saved_while_a_learner_runs_and_as_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_store, "SAVE_INTERVAL_S", 0.0)
    store, log = opened(tmp_path / "events.db", Clock())
    with store:
        saving = asyncio.create_task(save_events(log, store))
        log.add(event("pi-1"))
        await until(lambda: not store.unsaved(log).fresh)
        log.add(event("pi-1", "last"))
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    store, log = opened(tmp_path / "events.db", Clock())
    with store:
        assert [each.event.name for each in kept(log)] == ["last", "hello"]


@on_loop
async def test_a_disk_that_refuses_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_store, "SAVE_INTERVAL_S", 0.0)
    store, log = opened(tmp_path / "events.db", Clock())
    with store:
        log.add(event("pi-1"))
        tries, real = 0, store.save

        def save(unsaved: event_store.Unsaved) -> None:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise EventStoreError("full")
            real(unsaved)

        monkeypatch.setattr(store, "save", save)
        saving = asyncio.create_task(save_events(log, store))
        await until(lambda: not store.unsaved(log).fresh)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    assert [record.getMessage() for record in caplog.records].count("events_not_saved") == 1
