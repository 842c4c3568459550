"""Carries the events of a service of the fleet to the learner, over the broker that devices use.

Delivered at QoS 1 into the learner's session: what happens while the learner is away reaches it
when it comes back. Nothing waits for this, and nothing fails because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from edge_agent.uplink.connection import Address, Connection
from shoal.errors import ConnectionFailed, ShoalError
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame

DELIVERY_TIMEOUT_S: Final = 10.0
BACKOFF_BASE_S: Final = 1.0
BACKOFF_CAP_S: Final = 30.0
KEEPALIVE_S: Final = 30

_log = get_logger("events")


class Outbox(Protocol):
    """Where events wait until the broker has them."""

    async def wait(self) -> Sequence[pb.Event]:
        """The oldest that wait, as soon as there are some."""

    def settle(self, event: pb.Event) -> None:
        """The broker has it: it need not be posted again."""


class EventPost:
    """Posts what lies in an outbox, for ever.

    post = EventPost(outbox, topics, address)
    await run_services({"nats": server.serve, "events": post.serve})
    """

    def __init__(
        self,
        outbox: Outbox,
        topics: Topics,
        address: Callable[[], Address],
        *,
        rng: random.Random | None = None,
    ) -> None:
        """Connects nothing yet.

        Args:
            outbox: What to post.
            topics: Of the fleet.
            address: The broker, and as whom: asked at each attempt.
            rng: Of the jitter between attempts.
        """
        self._outbox = outbox
        self._topics = topics
        self._address = address
        self._rng = rng or random.Random()
        self._failure = ""

    async def serve(self) -> None:
        """Posts; ends only by being cancelled."""
        attempt = 0
        while True:
            waiting = await self._outbox.wait()
            try:
                await self._post(waiting)
                attempt, self._failure = 0, ""
            except ShoalError as error:
                self._tell(str(error))
                pause_s = backoff(
                    attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng
                )
                attempt += 1
                await asyncio.sleep(pause_s)

    async def _post(self, waiting: Sequence[pb.Event]) -> None:
        """Connects, posts what waits and what comes while the connection lasts."""
        address = self._address()
        connection = await Connection.open(
            address, None, on_message=lambda _topic, _payload: None, on_lost=lambda: None
        )
        topic = self._topics.event(address.name)
        try:
            while True:
                for event in waiting:
                    mid = connection.publish(topic, frame(event), qos=1)
                    if not await connection.delivered(mid, DELIVERY_TIMEOUT_S):
                        where = f"{address.host}:{address.port}"
                        raise ConnectionFailed(f"broker {where} did not take an event")
                    self._outbox.settle(event)
                if connection.lost.is_set():
                    return
                found = await _unless(connection.lost, self._outbox)
                if found is None:
                    return
                waiting = found
        finally:
            connection.close()

    def _tell(self, message: str) -> None:
        if message != self._failure:  # once, not at every attempt
            _log.warning("events_wait", error=message)
        self._failure = message


async def _unless(lost: asyncio.Event, outbox: Outbox) -> Sequence[pb.Event] | None:
    """What waits next; None when the connection was lost first."""
    ended, found = asyncio.ensure_future(lost.wait()), asyncio.ensure_future(outbox.wait())
    try:
        await asyncio.wait({ended, found}, return_when=asyncio.FIRST_COMPLETED)
        return found.result() if found.done() else None
    finally:
        for each in (ended, found):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
