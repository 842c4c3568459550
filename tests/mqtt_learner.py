"""A learner as a device's tests need it: hears everything, acknowledges what it is told to.

async with connected_learner(broker) as learner:
    envelope = await learner.chunk()
    learner.ack(envelope.key.run_id, Ranges.of([envelope.key.seq]))
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ParamSpec

from brokers import FLEET, WAIT_S, Broker, identity

from edge_agent.uplink.connection import Address, Connection
from shoal.envelope import Envelope, decode_envelope
from shoal.identity import Identity
from shoal.ranges import Ranges
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame, unframe

P = ParamSpec("P")
DEVICE = "pi-1"
TOPICS = Topics(FLEET)


def asyncs(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Runs a test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes

    @property
    def kind(self) -> str:
        return self.topic.rpartition("/")[2]


class Learner:
    """Receives and acknowledges."""

    def __init__(
        self, connection: Connection, inbox: asyncio.Queue[Message], since_s: float
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._since_ms = int(since_s * 1000)
        self._aside: list[Message] = []

    async def message(self) -> Message:
        """The next of any kind; fails if none comes."""
        async with asyncio.timeout(WAIT_S):
            return await self._inbox.get()

    async def next(self, kind: str) -> bytes:
        """The next of a kind; others that came before it are still there for who asks for them."""
        aside = [message for message in self._aside if message.kind == kind]
        if aside:
            self._aside.remove(aside[0])
            return aside[0].payload
        while (message := await self.message()).kind != kind or not message.payload:
            if message.payload:
                self._aside.append(message)
        return message.payload

    async def chunk(self) -> Envelope:
        return decode_envelope(await self.next("trajectory"))

    async def status(self, state: pb.DeviceState) -> pb.Status:
        """The next that says so; what earlier tests left behind does not count."""
        while True:
            found = unframe(pb.Status, await self.next("status"))
            if found.state == state and found.sent_unix_ms >= self._since_ms:
                return found

    async def event(self, name: str) -> pb.Event:
        while (event := unframe(pb.Event, await self.next("event"))).name != name:
            pass
        return event

    def ack(self, run_id: bytes, settled: Ranges, *, device_id: str = DEVICE) -> None:
        run = pb.RunAck(run_id=run_id, settled=settled.to_pb())
        self.send_ack(frame(pb.Ack(device_id=device_id, runs=[run])))

    def say(self, appetite: pb.Appetite) -> None:
        self._connection.publish(TOPICS.appetite(DEVICE), frame(appetite), qos=0)

    def send_ack(self, payload: bytes) -> None:
        self._connection.publish(TOPICS.ack(DEVICE), payload, qos=0)


@asynccontextmanager
async def connected_learner(
    broker: Broker, *, since_s: float | None = None
) -> AsyncIterator[Learner]:
    """Anybody with the learner's certificate; statuses from before `since_s` do not count."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    tls = Identity.load(identity(broker.pki, "learner")).ssl_context()
    connection = await Connection.open(
        Address(broker.host, broker.port, 60, f"learner-{os.urandom(4).hex()}", tls),
        None,
        on_message=lambda topic, payload: inbox.put_nowait(Message(topic, payload)),
        on_lost=lambda: None,
    )
    try:
        await connection.subscribe(TOPICS.all_up(), qos=1)
        yield Learner(connection, inbox, time.time() if since_s is None else since_s)
    finally:
        connection.close()
