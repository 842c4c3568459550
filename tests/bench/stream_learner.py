"""The receiving side of `shoal bench stream`: a learner's ingest and replay, or bare paho."""

import asyncio
import os
import random
import resource
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import paho.mqtt.client as mqtt
import psutil
from bench.child import now_s
from bench.fleet_site import FLEET, HOST
from paho.mqtt.enums import CallbackAPIVersion

from cloud_learner.config import BrokerConfig, IngestConfig, JournalConfig
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.journal.journal import Journal
from cloud_learner.training.experience import collate
from cloud_learner.training.replay import Replay
from cloud_learner.training.source import Moment
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.inbox import Inbox
from cloud_learner.uplink.ingest import Ingest, IngestParts
from cloud_learner.uplink.subscriber import Subscriber
from shoal.identity import Identity
from shoal.spaces import EnvSpec
from shoal.topics import Topics
from shoal.v1 import space_pb2

TIMEOUT_S = 300.0
REPLAY_STEPS = 2**22


@dataclass(frozen=True, slots=True)
class Receiver:
    """What the receiving process is told.

    Attributes:
        identities: Directory of identity directories.
        port: Of the broker.
        directory: For the journal.
        spec: The spaces, serialized.
        digest: Of the policy that acted, version 1.
        chunks: How many come in all.
        transitions: Of one chunk.
        batch_steps: Transitions of a batch.
    """

    identities: Path
    port: int
    directory: Path
    spec: bytes
    digest: bytes
    chunks: int
    transitions: int
    batch_steps: int


@dataclass(frozen=True, slots=True)
class Received:
    """How it went.

    Attributes:
        ended_s: The monotonic clock when the last batch, or message, was there.
        cpu_s: Processor time of the process.
        transitions: In batches.
        batches: Drawn.
        payload_bytes: Received.
        counters: What ingest counted.
        settled: By run id, as hexadecimal, how many chunks the journal decided on.
    """

    ended_s: float
    cpu_s: float
    transitions: int
    batches: int
    payload_bytes: int
    counters: dict[str, int]
    settled: dict[str, int]


def receive_into_batches(receiver: Receiver, pipe: Pipe) -> None:
    """Ingests, journals and draws batches until all chunks were drawn."""
    pipe.send(asyncio.run(_receive_into_batches(receiver, pipe)))


def receive_bare(receiver: Receiver, pipe: Pipe) -> None:
    """Counts the same bytes with nothing but paho and a persistent QoS 1 session."""
    client_id = _fresh_client_id()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    client.tls_set_context(Identity.load(receiver.identities / "learner").ssl_context())
    subscribed, done = threading.Event(), threading.Event()
    count = size = 0

    def on_message(_client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        nonlocal count, size
        count += 1
        size += len(message.payload)
        if count == receiver.chunks:
            done.set()

    def on_connect(*_: object) -> None:
        client.subscribe(Topics(FLEET).all_up(), qos=1)

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = on_message
    client.connect(HOST, receiver.port)
    client.loop_start()
    subscribed.wait(TIMEOUT_S)
    used_s = cpu_s()
    pipe.send("ready")
    if not done.wait(TIMEOUT_S):
        raise SystemExit(f"only {count} of {receiver.chunks} messages came")
    ended_s = now_s()
    pipe.send(Received(ended_s, cpu_s() - used_s, 0, 0, size, {}, {}))
    client.disconnect()
    client.loop_stop()
    forget_session(receiver, client_id)


@dataclass(frozen=True, slots=True)
class Learning:
    """A learner without its network: everything between the broker and a batch."""

    journal: Journal
    replay: Replay
    fleet: Fleet
    stats: TrainingStats
    counters: Counter[str]
    inbox: Inbox


@asynccontextmanager
async def learning(receiver: Receiver) -> AsyncIterator[Learning]:
    """Builds it, and runs it while the block does; it is subscribed when the block begins."""
    spec = EnvSpec.from_pb(space_pb2.EnvSpec.FromString(receiver.spec))
    versions = KnownVersions(lambda _: None, highest=0)
    versions.add(1, KnownVersion(0, receiver.digest))
    standard = Standard(spec, versions, updates_now=0, max_lag=128)
    counters: Counter[str] = Counter()
    with Journal(receiver.directory / "journal.db", JournalConfig()) as journal:
        replay, stats = Replay(REPLAY_STEPS, batch_steps=receiver.batch_steps), TrainingStats()
        facts = LearnerFacts(
            decided=journal.decided,
            updates=lambda: 0,
            updates_of=lambda _: 0,
            replay_steps=lambda: replay.steps,
            counters=counters,
        )
        config, fleet = IngestConfig(), Fleet(facts, stats)
        fleet.set_spec(spec)
        inbox = Inbox.of(config.max_queued_messages)
        identity, topics = Identity.load(receiver.identities / "learner"), Topics(FLEET)
        broker = BrokerConfig(HOST, receiver.port, client_id=_fresh_client_id())
        subscriber = Subscriber(broker, identity, topics, inbox, rng=random.Random())
        ingest = Ingest(
            IngestParts(inbox, journal, replay, fleet, stats, counters),
            config,
            standard=lambda: standard,
            publish_ack=lambda device, ack: subscriber.publish(topics.ack(device), ack),
            rng=random.Random(),
        )
        services = (
            subscriber.serve,
            ingest.serve_chunks,
            ingest.serve_commits,
            ingest.serve_reports,
            ingest.repeat_acks,
        )
        tasks = [asyncio.ensure_future(service()) for service in services]
        while subscriber.connected_s is None:  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0.01)
        yield Learning(journal, replay, fleet, stats, counters, inbox)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(forget_session, receiver, broker.client_id)


def forget_session(receiver: Receiver, client_id: str) -> None:
    """Takes a session from the broker: nothing of a run may reach the next one."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=True)
    client.tls_set_context(Identity.load(receiver.identities / "learner").ssl_context())
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(HOST, receiver.port)
    client.loop_start()
    connected.wait(TIMEOUT_S)
    client.disconnect()
    client.loop_stop()


def _fresh_client_id() -> str:
    return f"bench-learner-{os.urandom(4).hex()}"


async def _receive_into_batches(receiver: Receiver, pipe: Pipe) -> Received:
    async with learning(receiver) as learner:
        used_s = cpu_s()
        pipe.send("ready")
        drawn, batches = await _draw(learner.replay, receiver.chunks * receiver.transitions)
        ended_s = now_s()
        used_s = cpu_s() - used_s
        await asyncio.to_thread(pipe.recv)  # the devices have heard of everything
        settled = {
            run.run_id.hex(): decided.trained.count()
            for run, decided in learner.journal.runs().items()
        }
        size = learner.stats.to_pb().bytes_up
        return Received(ended_s, used_s, drawn, batches, size, dict(learner.counters), settled)


async def _draw(replay: Replay, wanted: int) -> tuple[int, int]:
    """Draws batches, as a trainer does, until `wanted` transitions were drawn or are left over."""
    drawn = batches = 0
    async with asyncio.timeout(TIMEOUT_S):
        while drawn < wanted:
            await replay.wait_ready(unless=partial(_holds, replay, wanted - drawn))
            if not replay.ready():
                break  # the rest is less than a batch
            draw = replay.take(Moment(0))
            batch = await asyncio.to_thread(collate, draw.taken, updates_now=0)
            drawn += batch.transitions
            batches += 1
    return drawn, batches


def _holds(replay: Replay, steps: int) -> bool:
    return replay.steps >= steps


def cpu_s() -> float:
    """Processor time of this process, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rss_bytes() -> int:
    """Resident memory of this process now."""
    rss: int = psutil.Process().memory_info().rss
    return rss
