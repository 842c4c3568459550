"""What happened in the whole fleet, in the order in which the learner heard of it; bounded."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shoal.v1 import device_pb2 as pb

MAX_EVENTS: Final = 20_000
"""Events kept in all; beyond, the oldest go."""
MAX_OF_A_KIND: Final = 200
"""Events kept of one source, device and severity, so that no flood pushes out the rest."""
MAX_COUNTERS: Final = 1024
"""Kinds that are counted apart; what devices call their events is theirs to choose."""
MAX_MESSAGE_CHARACTERS: Final = 500
MAX_FIELDS: Final = 16
MAX_FIELD_CHARACTERS: Final = 200
MAX_COUNT: Final = 2**32

DEVICE, LEARNER = "device", "learner"
_SERVICES: Final = {"learner": LEARNER, "broker": "broker", "server": "enrollment"}
"""Who tells of others: the name of its certificate, and what it is called here."""
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event, who tells it, the device it is about, and when it was heard, monotonic seconds."""

    place: int
    event: pb.Event
    source: str
    about: str
    at_s: float

    @property
    def kind(self) -> str:
        """`NAME.REASON`, or the name alone."""
        reason = self.event.fields.get("reason")
        return f"{self.event.name}.{reason}" if reason else self.event.name


@dataclass(frozen=True, slots=True)
class Query:
    """Which events are asked for.

    Attributes:
        about: of this device only; empty: of all.
        kinds: names, or `NAME.REASON`; none: all.
        since_s: heard no earlier, monotonic seconds.
    """

    about: str = ""
    kinds: frozenset[str] = frozenset()
    since_s: float = float("-inf")

    def asks_for(self, logged: LoggedEvent) -> bool:
        """Whether an event is one of them."""
        return (
            (not self.about or logged.about == self.about)
            and (not self.kinds or not self.kinds.isdisjoint((logged.event.name, logged.kind)))
            and logged.at_s >= self.since_s
        )


class EventLog:
    """Every event of the fleet. Used from the event loop.

    log = EventLog()
    log.add(event)
    for logged in log.newest(Query(about="pi-1"), limit=10): ...

    Attributes:
        log_id: 16 bytes; places count within it.
        counters: How often each kind happened since the start, by `SOURCE.NAME` or
            `SOURCE.NAME.REASON`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with nothing.

        Args:
            clock: Monotonic seconds.
        """
        self.log_id = os.urandom(16)
        self.counters: Counter[str] = Counter()
        self._clock = clock
        self._place = 0
        self._events: OrderedDict[int, LoggedEvent] = OrderedDict()
        self._places: defaultdict[tuple[str, str, bool], deque[int]] = defaultdict(deque)
        self._changed = asyncio.Event()

    @property
    def newest_place(self) -> int:
        """Of the last event that was heard of; 0: of none."""
        return self._place

    def add(self, event: pb.Event, *, by: str | None = None) -> LoggedEvent:
        """Keeps an event.

        Args:
            event: What happened, not trusted; a service of the fleet names whom it is about in the
                field `device_id`, and how often it happened in `count`.
            by: Who tells it, by the name of its certificate; `event.device_id` if None.
        """
        source = _SERVICES.get(by if by is not None else event.device_id, DEVICE)
        about = event.device_id
        if source != DEVICE and about in _SERVICES:
            about = event.fields.get("device_id", "")
        self._place += 1
        logged = LoggedEvent(self._place, _cut(event), source, about[:63], self._clock())
        self._count(logged)
        self._keep(logged)
        self._changed.set()
        self._changed = asyncio.Event()
        return logged

    def restore(self, log_id: bytes, events: Iterable[LoggedEvent], *, after: int) -> None:
        """Goes on from what an earlier log kept; nothing was added to this one.

        Args:
            log_id: That log's.
            events: What it kept, oldest first.
            after: The places of new events are above it.
        """
        self.log_id = log_id
        for logged in events:
            self._keep(logged)
        self._place = after

    def places(self) -> set[int]:
        """Of all that is kept."""
        return set(self._events)

    def newest(self, query: Query, *, limit: int) -> list[LoggedEvent]:
        """What is asked for, newest first."""
        found: list[LoggedEvent] = []
        for logged in reversed(self._events.values()):
            if len(found) >= limit or logged.at_s < query.since_s:
                break
            if query.asks_for(logged):
                found.append(logged)
        return found

    def after(self, place: int, query: Query) -> list[LoggedEvent]:
        """What is asked for and came after a place, oldest first."""
        return list(reversed(list(self._newer(place, query))))

    def next_change(self) -> asyncio.Event:
        """What is set when the next event comes."""
        return self._changed

    def _newer(self, place: int, query: Query) -> Iterator[LoggedEvent]:
        for logged in reversed(self._events.values()):
            if logged.place <= place:
                return
            if query.asks_for(logged):
                yield logged

    def _count(self, logged: LoggedEvent) -> None:
        key = f"{logged.source}.{logged.kind}"
        if key not in self.counters and len(self.counters) >= MAX_COUNTERS:
            key = f"{logged.source}.{_OTHER}"
        told = logged.event.fields.get("count", "")
        counted = logged.source != DEVICE and told.isascii() and told.isdecimal()
        self.counters[key] += min(int(told[:10]), MAX_COUNT) if counted else 1

    def _keep(self, logged: LoggedEvent) -> None:
        places = self._places[_bucket(logged)]
        if len(places) >= MAX_OF_A_KIND:
            del self._events[places.popleft()]
        places.append(logged.place)
        self._events[logged.place] = logged
        if len(self._events) > MAX_EVENTS:
            _, oldest = self._events.popitem(last=False)
            bucket = _bucket(oldest)
            self._places[bucket].popleft()
            if not self._places[bucket]:
                del self._places[bucket]


def learner_event(
    device_id: str,
    name: str,
    message: str,
    *,
    severity: pb.Severity,
    fields: Mapping[str, str] | None = None,
    run_id: bytes = b"",
    seq: int = 0,
) -> pb.Event:
    """An event that the learner itself tells of a device."""
    return pb.Event(
        device_id=device_id,
        run_id=run_id,
        event_seq=seq,
        sent_unix_ms=int(time.time() * 1000),
        severity=severity,
        name=name,
        fields=fields or {},
        message=message,
    )


def state_event(status: pb.Status) -> pb.Event:
    """That a device came or went."""
    state = pb.DeviceState.Name(status.state).removeprefix("DEVICE_STATE_").lower()
    lost = status.state == pb.DEVICE_STATE_OFFLINE_LOST
    return learner_event(
        status.device_id,
        f"device_{state}",
        status.reason or state.replace("_", " "),
        severity=pb.SEVERITY_WARNING if lost else pb.SEVERITY_INFO,
        run_id=status.run_id,
    )


def _bucket(logged: LoggedEvent) -> tuple[str, str, bool]:
    bad = logged.event.severity in (pb.SEVERITY_WARNING, pb.SEVERITY_ERROR)
    return logged.source, logged.about, bad


def _cut(event: pb.Event) -> pb.Event:
    """The same, no longer than an event should be."""
    cut = pb.Event(
        device_id=event.device_id[:63],
        run_id=event.run_id[:16],
        event_seq=event.event_seq,
        sent_unix_ms=event.sent_unix_ms,
        severity=event.severity,
        name=event.name if _NAME.fullmatch(event.name) else _OTHER,
        message=event.message[:MAX_MESSAGE_CHARACTERS],
    )
    for key in sorted(event.fields)[:MAX_FIELDS]:
        cut.fields[key[:64]] = event.fields[key][:MAX_FIELD_CHARACTERS]
    reason = cut.fields.get("reason", "")
    if reason and not _NAME.fullmatch(reason):
        cut.fields["reason"] = _OTHER
    return cut
