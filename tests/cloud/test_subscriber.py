from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import FLEET, Broker, Client, identity, nats_broker
from sim import on_loop, until

from cloud_learner.config import BrokerConfig
from cloud_learner.uplink.inbox import Inbox, Message
from cloud_learner.uplink.subscriber import Subscriber
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoal.topics import Topics
from shoalctl.pki.pki import FleetPki

TOPICS = Topics(FLEET)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with nats_broker(tmp_path_factory.mktemp("broker"), devices=["pi-1"]) as running:
        yield running


@asynccontextmanager
async def subscribed(
    broker: Broker, inbox: Inbox, *, client_id: str = "learner"
) -> AsyncIterator[Subscriber]:
    config = BrokerConfig(
        host=broker.host,
        port=broker.port,
        client_id=client_id,
        backoff_base_s=0.01,
        backoff_cap_s=0.05,
    )
    me = Identity.load(identity(broker.pki, "learner"))
    subscriber = Subscriber(config, me, TOPICS, inbox, rng=random.Random(0))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(subscriber.serve())
        await until_connected(subscriber, 1)
        yield subscriber
        serving.cancel()


async def until_connected(subscriber: Subscriber, connections: int) -> None:
    await until(lambda: subscriber.connections >= connections)


async def send(broker: Broker, payload: bytes) -> None:
    def publish() -> None:
        with Client(broker, "pi-1") as device:
            device.publish(TOPICS.trajectory("pi-1"), payload)

    await asyncio.to_thread(publish)


def test_receives_what_devices_send_and_answers_them(broker: Broker) -> None:
    @on_loop
    async def scenario() -> None:
        inbox = Inbox.of(16)
        async with subscribed(broker, inbox, client_id="answers") as subscriber:
            await send(broker, b"chunk")
            expected = [Message(TOPICS.trajectory("pi-1"), b"chunk")]
            assert await inbox.chunks.take(8) == expected
            with Client(broker, "pi-1") as device:
                await asyncio.to_thread(device.subscribe, TOPICS.down("pi-1"))
                subscriber.publish(TOPICS.ack("pi-1"), b"ack")
                assert (await asyncio.to_thread(device.receive)).payload == b"ack"

    scenario()


def test_gets_what_was_sent_while_it_was_away(broker: Broker) -> None:
    @on_loop
    async def scenario() -> None:
        inbox = Inbox.of(16)
        async with subscribed(broker, inbox, client_id="away"):
            pass
        await send(broker, b"meanwhile")
        async with subscribed(broker, inbox, client_id="away"):
            assert [m.payload for m in await inbox.chunks.take(8)] == [b"meanwhile"]

    scenario()


def test_a_renewed_session_has_another_id_and_receives_again(broker: Broker) -> None:
    @on_loop
    async def scenario() -> None:
        inbox = Inbox.of(16)
        async with subscribed(broker, inbox, client_id="renewed") as subscriber:
            subscriber.renew()
            await until_connected(subscriber, 2)
            await send(broker, b"again")
            assert [m.payload for m in await inbox.chunks.take(8)] == [b"again"]
            assert subscriber.renewals == 1

    scenario()


def test_comes_back_after_the_broker_was_killed(tmp_path: Path) -> None:
    @on_loop
    async def scenario() -> None:
        inbox = Inbox.of(16)
        with nats_broker(tmp_path, devices=["pi-1"]) as broker:
            async with subscribed(broker, inbox) as subscriber:
                await asyncio.to_thread(broker.kill)
                subscriber.publish(TOPICS.ack("pi-1"), b"lost, and harmless")
                await asyncio.to_thread(broker.start)
                await until_connected(subscriber, 2)
                await send(broker, b"after")
                assert [m.payload for m in await inbox.chunks.take(8)] == [b"after"]

    scenario()


def test_a_broker_of_a_foreign_ca_ends_the_learner_with_one_line(
    broker: Broker, tmp_path: Path
) -> None:
    @on_loop
    async def scenario() -> None:
        foreign = FleetPki.create(tmp_path / "foreign", FLEET)
        config = BrokerConfig(host=broker.host, port=broker.port)
        me = Identity.load(identity(foreign, "learner"))
        subscriber = Subscriber(config, me, TOPICS, Inbox.of(1), rng=random.Random(0))
        with pytest.raises(IdentityError, match=r"certificate of the CA in `identity`"):
            await subscriber.serve()

    scenario()
