"""Events of a service reach the learner over a real broker, whatever that broker does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import BROKERS, FLEET, KINDS, Broker, Client
from brokers import identity as identity_of
from sim import on_loop

from edge_agent.uplink.connection import Address
from shoal.identity import Identity
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import unframe
from shoalctl.events.post import EventPost

TOPICS = Topics(FLEET)


class Outbox:
    """A list of names."""

    def __init__(self) -> None:
        self.waiting: list[pb.Event] = []
        self.settled: list[str] = []
        self._news = asyncio.Event()

    def put(self, *names: str) -> None:
        self.waiting += [
            pb.Event(device_id="server", run_id=bytes(16), name=each) for each in names
        ]
        self._news.set()

    async def wait(self) -> Sequence[pb.Event]:
        while not self.waiting:
            self._news.clear()
            await self._news.wait()
        return list(self.waiting)

    def settle(self, event: pb.Event) -> None:
        self.waiting.remove(event)
        self.settled.append(event.name)


@asynccontextmanager
async def posting(broker: Broker, outbox: Outbox, name: str = "server") -> AsyncIterator[None]:
    tls = Identity.load(identity_of(broker.pki, name)).ssl_context()
    address = Address(broker.host, broker.port, 30, f"{name}-1", tls, name)
    post = EventPost(outbox, TOPICS, lambda: address, rng=random.Random(0))
    serving = asyncio.ensure_future(post.serve())
    try:
        yield
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def settled(outbox: Outbox, count: int) -> None:
    async with asyncio.timeout(60):
        while len(outbox.settled) < count:  # noqa: ASYNC110 - behind a connection
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_events_come_to_the_learner_in_order_while_it_is_there_and_while_it_is_not(
    kind: str, tmp_path: Path
) -> None:
    @on_loop
    async def post(broker: Broker, *names: str) -> None:
        outbox = Outbox()
        async with posting(broker, outbox):
            outbox.put(*names)
            await settled(outbox, len(names))
        assert outbox.settled == [*names]

    with BROKERS[kind](tmp_path) as broker:
        with Client(broker, "learner", client_id="shoal-learner", clean=False) as learner:
            assert learner.subscribe(TOPICS.all_up(), 1)
            post(broker, "one")
            assert unframe(pb.Event, learner.receive().payload).name == "one"
        post(broker, "two", "three")
        with Client(broker, "learner", client_id="shoal-learner", clean=False) as learner:
            names = {unframe(pb.Event, learner.receive().payload).name for _ in range(2)}
            assert names == {"two", "three"}


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    outbox = Outbox()

    @on_loop
    async def scenario(broker: Broker) -> None:
        async with posting(broker, outbox):
            outbox.put("one")
            await settled(outbox, 1)
            await asyncio.to_thread(broker.kill)
            outbox.put("two")
            await asyncio.to_thread(broker.start)
            await settled(outbox, 2)

    with BROKERS["nats"](tmp_path) as broker:
        scenario(broker)
    assert outbox.settled == ["one", "two"]


def test_services_may_tell_of_events_as_themselves_and_nothing_else(tmp_path: Path) -> None:
    with (
        BROKERS["nats"](tmp_path, devices=["pi-1"]) as broker,
        Client(broker, "learner", hears_broker=True) as learner,
    ):
        assert learner.subscribe(TOPICS.all_up(), 1)
        for name in ("broker", "server"):
            with Client(broker, name) as service:
                for topic in (TOPICS.event("pi-1"), TOPICS.status(name), TOPICS.ack("pi-1")):
                    service.send(topic, b"spoofed")
                service.publish(TOPICS.event(name), b"fine")
            while (message := learner.receive()).payload != b"fine":
                assert message.topic == TOPICS.event("broker"), "it tells whom it refused"
            assert message.topic == TOPICS.event(name)
            with Client(broker, name) as service:
                assert not service.subscribe(TOPICS.all_up())
