"""The uplink against real brokers: nothing leaves the spool before the learner has it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import BROKERS, WAIT_S, Broker, free_port, identity
from mqtt_learner import DEVICE, TOPICS, asyncs, connected_learner

from edge_agent.config import BrokerConfig
from edge_agent.events import Events
from edge_agent.spool.spool import Spool
from edge_agent.status import Certifier
from edge_agent.uplink.appetite import Appetite
from edge_agent.uplink.uplink import Uplink
from shoal import zstd
from shoal.envelope import MAX_ENVELOPE_BYTES
from shoal.identity import Identity
from shoal.ranges import Ranges
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.v1 import device_pb2 as pb
from shoal.wire import unframe

SPEC = EnvSpec("counting", unbounded((4,)), Discrete(2))
SILENT_S = 10.0
KINDS = ["nats", pytest.param("mosquitto", marks=pytest.mark.mosquitto)]


def _run(n: int) -> bytes:
    return bytes([n]) * 16


def _body(n: int = 0) -> bytes:
    return zstd.compress(b"chunk %d" % n, level=1, checksum=True)


@pytest.fixture(scope="module", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(f"broker-{request.param}")
    with BROKERS[request.param](directory, devices=[DEVICE]) as running:
        yield running


@asynccontextmanager
async def device(
    broker: Broker,
    path: Path,
    run_id: bytes = _run(1),
    *,
    window_chunks: int = 4,
    ack_timeout_s: float = 60.0,
    learner_lost_s: float = 60.0,
    port: int | None = None,
    drain_s: float = 0.0,
) -> AsyncIterator[Device]:
    """An uplink that serves, and its spool."""
    who = Identity.load(identity(broker.pki, DEVICE))
    events = Events(DEVICE, run_id, clock=time.time)
    config = BrokerConfig(
        host=broker.host,
        port=port or broker.port,
        window_chunks=window_chunks,
        ack_timeout_s=ack_timeout_s,
        learner_lost_s=learner_lost_s,
    )
    appetite = Appetite(lapse_s=60.0)
    with Spool(
        path,
        max_bytes=2**26,
        run_id=run_id,
        events=events,
        oldest_version=lambda: appetite.oldest_version,
    ) as spool:
        async with Uplink(
            config,
            who,
            spool,
            events,
            topics=TOPICS,
            certificate=Certifier(DEVICE, run_id, SPEC, 1, clock=time.time),
            run_id=run_id,
            appetite=appetite,
            drain_s=drain_s,
        ) as uplink:
            serving = asyncio.ensure_future(uplink.serve())
            try:
                yield Device(uplink, spool, events)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)


class Device:
    def __init__(self, uplink: Uplink, spool: Spool, events: Events) -> None:
        self.uplink = uplink
        self.spool = spool
        self.events = events

    def produce(self, count: int) -> None:
        for n in range(count):
            self.spool.append(_body(n), 1)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for something the device itself must come to."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def heard() -> None:
            loop.call_soon_threadsafe(news.set)

        with self.spool.listening(heard), self.events.listening(heard):
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    news.clear()
                    await news.wait()


def spooled(spool: Spool) -> int:
    return sum(run.spooled.count() for run in spool.ledger())


@asyncs
async def test_a_birth_is_retained_and_says_what_the_device_is(
    broker: Broker, tmp_path: Path
) -> None:
    async with connected_learner(broker) as learner, device(broker, tmp_path / "spool"):
        await learner.status(pb.DEVICE_STATE_ONLINE)
        async with connected_learner(broker, since_s=0) as late:
            birth = await late.status(pb.DEVICE_STATE_ONLINE)
    assert (birth.device_id, birth.run_id) == (DEVICE, _run(1))
    assert EnvSpec.from_pb(birth.env_spec).fingerprint == SPEC.fingerprint
    assert birth.hardware.cpus > 0
    assert birth.onnxruntime_version


@asyncs
async def test_a_stop_in_order_is_told_as_expected_and_stays_told(
    broker: Broker, tmp_path: Path
) -> None:
    async with connected_learner(broker) as learner:
        async with device(broker, tmp_path / "spool") as it:
            await learner.status(pb.DEVICE_STATE_ONLINE)
            it.uplink._report = lambda: pb.Telemetry(device_id=DEVICE, env_steps=7)
        last = unframe(pb.Telemetry, await learner.next("telemetry"))
        assert last.env_steps == 7
        await learner.status(pb.DEVICE_STATE_OFFLINE_EXPECTED)
    async with connected_learner(broker, since_s=0) as late:
        await late.status(pb.DEVICE_STATE_OFFLINE_EXPECTED)


@asyncs
async def test_discards_only_after_the_learner_acknowledged(broker: Broker, tmp_path: Path) -> None:
    async with connected_learner(broker) as learner, device(broker, tmp_path / "spool") as it:
        it.produce(3)
        chunks = [await learner.chunk() for _ in range(3)]
        assert sorted((c.key.device_id, c.key.run_id, c.key.seq) for c in chunks) == [
            (DEVICE, _run(1), n) for n in range(3)
        ]
        assert sorted(bytes(c.body) for c in chunks) == sorted(_body(n) for n in range(3))
        assert spooled(it.spool) == 3
        learner.ack(_run(1), Ranges.of([0, 2]))
        await it.until(lambda: spooled(it.spool) == 1)
        assert it.spool.ledger()[-1].spooled == Ranges.of([1])
        assert it.uplink.ack_age_s() >= 0


@asyncs
async def test_no_more_than_the_window_is_ever_unacknowledged(
    broker: Broker, tmp_path: Path
) -> None:
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "spool", window_chunks=3) as it,
    ):
        it.produce(20)
        got = 0
        while got < 20:
            more = min(3, 20 - got)
            seqs = {(await learner.chunk()).key.seq for _ in range(more)}
            assert seqs == set(range(got, got + more))
            assert it.uplink.counters.sent_chunks == got + more
            got += more
            learner.ack(_run(1), Ranges.upto(got))
        await it.until(lambda: spooled(it.spool) == 0)
        assert it.uplink.counters.resent_chunks == 0
        assert it.uplink.counters.acked_chunks == 20


@asyncs
async def test_chunks_too_old_for_the_learner_expire_before_they_are_sent(
    broker: Broker, tmp_path: Path
) -> None:
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "spool", window_chunks=1) as it,
    ):
        for version in (1, 1, 1, 2):
            it.spool.append(_body(version), version)
        assert (await learner.chunk()).key.seq == 0
        learner.say(pb.Appetite(oldest_version=2, sent_seq=1, learner_run_id=_run(7)))
        assert (await learner.chunk()).key.seq == 3
        assert it.spool.ledger()[-1].expired == Ranges.upto(3)
        assert it.uplink.counters.sent_chunks == 2
        learner.say(pb.Appetite(oldest_version=9, sent_seq=1, learner_run_id=_run(7)))  # again
        learner.say(pb.Appetite(oldest_version=9, sent_seq=2, learner_run_id=b"garbage"))
        await it.until(lambda: it.uplink.counters.bad_messages == 1)
        learner.ack(_run(1), Ranges.of([0, 3]))
        await it.until(lambda: spooled(it.spool) == 0)
        assert it.spool.ledger()[-1].expired == Ranges.upto(3)


@asyncs
async def test_sends_again_what_nobody_acknowledged(broker: Broker, tmp_path: Path) -> None:
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "spool", ack_timeout_s=0.05) as it,
    ):
        it.produce(1)
        assert await learner.chunk() == await learner.chunk()
        assert it.uplink.counters.resent_chunks >= 1
        learner.ack(_run(1), Ranges.upto(1))
        await it.until(lambda: spooled(it.spool) == 0)


@asyncs
async def test_chunks_of_an_earlier_run_are_sent_under_that_run(
    broker: Broker, tmp_path: Path
) -> None:
    events = Events(DEVICE, _run(1), clock=time.time)
    with Spool(tmp_path / "spool", max_bytes=2**20, run_id=_run(1), events=events) as spool:
        spool.append(_body(0), 1)
        spool.append(_body(1), 1)
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "spool", _run(2)) as it,
    ):
        it.produce(1)
        chunks = [await learner.chunk() for _ in range(3)]
        assert {(c.key.run_id, c.key.seq) for c in chunks} == {
            (_run(1), 0),
            (_run(1), 1),
            (_run(2), 0),
        }
        learner.ack(_run(1), Ranges.upto(2))
        await it.until(lambda: spooled(it.spool) == 1)


@asyncs
async def test_an_acknowledgement_that_makes_no_sense_changes_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    async with connected_learner(broker) as learner, device(broker, tmp_path / "spool") as it:
        it.produce(1)
        await learner.chunk()
        learner.send_ack(b"junk")
        assert (await learner.event("bad_message")).message
        learner.ack(_run(1), Ranges.upto(9), device_id="pi-2")
        learner.ack(_run(9), Ranges.upto(9))
        it.produce(1)
        await learner.chunk()
        learner.ack(_run(1), Ranges.of([1]))
        await it.until(lambda: it.uplink.counters.acked_chunks == 1)
        assert it.uplink.counters.bad_messages == 2
        assert it.spool.ledger()[-1].spooled == Ranges.of([0])


@asyncs
async def test_a_chunk_too_large_for_any_broker_is_dropped_and_told(
    broker: Broker, tmp_path: Path
) -> None:
    big = _body() + bytes(MAX_ENVELOPE_BYTES)
    async with connected_learner(broker) as learner, device(broker, tmp_path / "spool") as it:
        it.spool.append(big, 1)
        it.produce(1)
        assert (await learner.chunk()).key.seq == 1
        assert (await learner.event("chunk_dropped")).fields["reason"] == "size"
        assert it.spool.ledger()[-1].dropped == Ranges.of([0])


@asyncs
async def test_a_silent_learner_is_reported_lost_and_then_back(
    broker: Broker, tmp_path: Path
) -> None:
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "spool", learner_lost_s=0.1) as it,
    ):
        it.produce(1)
        await learner.event("learner_lost")
        learner.ack(_run(1), Ranges.upto(1))
        await learner.event("learner_back")
        assert not it.uplink.learner_lost


@asyncs
async def test_two_agents_with_one_identity_do_not_fight(broker: Broker, tmp_path: Path) -> None:
    async with (
        connected_learner(broker) as learner,
        device(broker, tmp_path / "a", _run(1)) as one,
        device(broker, tmp_path / "b", _run(2)) as two,
    ):
        one.produce(1)
        two.produce(1)
        runs = {(await learner.chunk()).key.run_id for _ in range(2)}
        assert runs == {_run(1), _run(2)}
        learner.ack(_run(2), Ranges.upto(1))
        await two.until(lambda: spooled(two.spool) == 0)
        assert spooled(one.spool) == 1
        assert one.uplink.counters.connections == two.uplink.counters.connections == 1


@asyncs
async def test_the_last_chunks_are_handed_over_before_the_farewell(
    broker: Broker, tmp_path: Path
) -> None:
    async with connected_learner(broker) as learner:
        async with device(broker, tmp_path / "spool", drain_s=WAIT_S) as it:
            it.produce(2)
            await learner.chunk()
            await learner.chunk()
            learner.ack(_run(1), Ranges.upto(2))
        assert spooled(it.spool) == 0
        await learner.status(pb.DEVICE_STATE_OFFLINE_EXPECTED)


@asyncs
async def test_a_device_that_vanishes_is_declared_lost_by_its_own_will(
    broker: Broker, tmp_path: Path
) -> None:
    async with connected_learner(broker) as learner, device(broker, tmp_path / "spool") as it:
        await learner.status(pb.DEVICE_STATE_ONLINE)
        assert it.uplink._connection is not None
        held = it.uplink._connection._socket
        assert held is not None
        held.shutdown(socket.SHUT_RDWR)
        assert (await learner.status(pb.DEVICE_STATE_OFFLINE_LOST)).run_id == _run(1)
        assert (await learner.status(pb.DEVICE_STATE_ONLINE)).run_id == _run(1)


@asyncs
async def test_without_a_broker_it_says_so_once_and_spools(broker: Broker, tmp_path: Path) -> None:
    async with device(broker, tmp_path / "spool", port=free_port()) as it:
        it.produce(5)
        await it.until(lambda: spooled(it.spool) == 5)
        names: list[str] = []
        while "broker_lost" not in names:
            await it.until(lambda: bool(it.events._waiting))
            names += [event.name for event in it.events.take()]
        assert names == ["broker_lost"]
        assert not it.uplink.connected


@pytest.mark.parametrize("kind", KINDS)
@asyncs
async def test_a_killed_broker_costs_nothing(kind: str, tmp_path: Path) -> None:
    with BROKERS[kind](tmp_path, devices=[DEVICE]) as broker:
        async with device(broker, tmp_path / "spool") as it:
            async with connected_learner(broker) as learner:
                it.produce(2)
                assert (await learner.chunk()).key.seq == 0
                broker.kill()
            it.produce(2)
            await asyncio.to_thread(broker.start)
            seqs: set[int] = set()
            while spooled(it.spool):
                # As a learner does: some sessions of NATS hear nothing, and have to be renewed.
                async with connected_learner(broker) as learner:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SILENT_S):
                            while seqs != {0, 1, 2, 3}:
                                seqs.add((await learner.chunk()).key.seq)
                            learner.ack(_run(1), Ranges.upto(4))
                            await it.until(lambda: spooled(it.spool) == 0)
            assert seqs == {0, 1, 2, 3}
