"""What happened in the fleet, as operators read it over gRPC: `shoal.v1.Events`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping

import grpc
import grpc.aio

from cloud_learner.fleet.device_record import age
from cloud_learner.fleet.event_log import EventLog, LoggedEvent, Query
from cloud_learner.fleet.service import require_operator
from cloud_learner.serving.grpc_server import Context, refuse
from shoal.v1 import events_pb2 as pb
from shoal.v1 import events_pb2_grpc as rpc

MAX_LISTED = 10_000
MAX_KINDS = 64
MAX_WATCHES = 64
"""Watches at a time; more are refused, so that views never cost training its time."""


class EventsService(rpc.EventsServicer):
    """Serves `shoal.v1.Events` to operators and the learner, and to nobody else.

    service = EventsService(fleet.log, counters, fleet="reef")
    """

    def __init__(
        self,
        log: EventLog,
        counters: Mapping[str, int],
        *,
        fleet: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Joins the log and the learner's counters.

        Args:
            log: What happened.
            counters: What the learner counts, by name.
            fleet: The fleet served.
            clock: Monotonic seconds, the log's.
        """
        self._log = log
        self._counters = counters
        self._fleet = fleet
        self._clock = clock
        self._stopping = asyncio.Event()
        self._watches = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_EventsServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Ends every watch; callers see UNAVAILABLE."""
        self._stopping.set()

    async def ListEvents(  # noqa: N802 - the name in the proto
        self, request: pb.ListEventsRequest, context: Context
    ) -> pb.ListEventsResponse:
        """What happened, newest first, and how often each kind did."""
        await require_operator(context, request.fleet, self._fleet)
        since_s = self._clock() - request.max_age_s if request.max_age_s > 0 else float("-inf")
        query = Query(request.about, frozenset(request.kinds[:MAX_KINDS]), since_s)
        limit = min(request.limit or MAX_LISTED, MAX_LISTED)
        counters = dict(self._log.counters)
        counters.update({f"learner.{name}": count for name, count in self._counters.items()})
        return pb.ListEventsResponse(
            events=[self._event(logged) for logged in self._log.newest(query, limit=limit)],
            counters=counters,
            log_id=self._log.log_id,
            newest_place=self._log.newest_place,
        )

    async def WatchEvents(  # noqa: N802 - the name in the proto
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """What happens from a place on, oldest first, until the learner stops."""
        await require_operator(context, request.fleet, self._fleet)
        if self._watches >= MAX_WATCHES:
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHES} views watch the events already: close one",
            )
        query = Query(request.about, frozenset(request.kinds[:MAX_KINDS]))
        place = request.after_place if request.log_id == self._log.log_id else 0
        self._watches += 1
        try:
            while not self._stopping.is_set():
                change = self._log.next_change()
                for logged in self._log.after(place, query):
                    place = logged.place
                    yield pb.WatchEventsResponse(event=self._event(logged), log_id=self._log.log_id)
                await _either(change, self._stopping)
        finally:
            self._watches -= 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")

    def _event(self, logged: LoggedEvent) -> pb.FleetEvent:
        return pb.FleetEvent(
            place=logged.place,
            event=logged.event,
            source=logged.source,
            about=logged.about,
            age_s=age(logged.at_s, self._clock()),
        )


async def _either(*events: asyncio.Event) -> None:
    """Waits until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
