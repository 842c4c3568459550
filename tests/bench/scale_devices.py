"""Many simulated devices in one process, each with a certificate and an MQTT session of its own.

What sends is the device's own: its connection, its window and its rules of sending again. Only the
environment is left out, and the spool is in memory: chunks recorded beforehand come at a rate.
"""

import asyncio
import random
import resource
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from bench.fleet_site import FLEET, HOST
from bench.stream_device import DeviceCertificate

from edge_agent.spool.run_ledger import NOTHING, RunLedger
from edge_agent.uplink.connection import Address, Connection, Will
from edge_agent.uplink.window import Flight, Timing, all_due, plan
from shoal.envelope import ChunkKey, Envelope, encode_envelope
from shoal.errors import ShoalError
from shoal.identity import Identity
from shoal.noise import RUN_ID_BYTES
from shoal.ranges import Ranges
from shoal.services import backoff
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame, unframe

TIMING = Timing(window_chunks=8, ack_timeout_s=5.0, longest_s=20.0)
"""An agent's defaults."""
KEEPALIVE_S = 20
CONNECTS_AT_ONCE = 8
"""Handshakes that one process has under way."""
FAREWELL_S = 10.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """What one process of devices is told.

    Attributes:
        devices: Their names.
        identities: Directory of identity directories.
        port: Of the broker.
        bodies: Chunks, sent in turn.
        spec: The spaces, serialized.
        chunk_s: Seconds between two chunks of a device; 0: it sends none.
        telemetry_s: Seconds between two reports.
        drain_s: How long the end waits for what is not acknowledged.
    """

    devices: tuple[str, ...]
    identities: Path
    port: int
    bodies: tuple[bytes, ...]
    spec: bytes
    chunk_s: float
    telemetry_s: float
    drain_s: float


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """How it went.

    Attributes:
        produced: By run id, as hexadecimal, how many chunks it made.
        unsettled: Chunks that nobody acknowledged by the end.
        resent: Chunks sent more than once.
        connections: That came about; one a device is right.
        latency_ms: From the first send of a chunk to its acknowledgement, of all chunks.
        cpu_s: Processor time of the process between `go` and `stop`.
        rss_bytes: Its memory at the end.
    """

    produced: dict[str, int]
    unsettled: int
    resent: int
    connections: int
    latency_ms: list[float]
    cpu_s: float
    rss_bytes: int


def simulate(crowd: Crowd, pipe: Pipe) -> None:
    """Connects all, says "ready", acts from "go" to "stop", and answers a `CrowdResult`."""
    asyncio.run(_simulate(crowd, pipe))


@dataclass(slots=True)
class Device:
    """One device: its run, what is not acknowledged, and its session."""

    name: str
    crowd: Crowd
    rng: random.Random
    run_id: bytes = field(default_factory=lambda: random.randbytes(RUN_ID_BYTES))
    ledger: RunLedger = field(init=False)
    connection: Connection | None = None
    flights: tuple[Flight, ...] = ()
    first_sent_s: dict[int, float] = field(default_factory=dict)
    latency_ms: list[float] = field(default_factory=list)
    resent: int = 0
    connections: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.ledger = RunLedger(self.run_id)

    async def connect(self, handshakes: asyncio.Semaphore) -> None:
        """Connects, subscribes, and says that it was born; tries again until it succeeds."""
        topics, attempt = Topics(FLEET), 0
        certify = DeviceCertificate(self.name, self.run_id, self.crowd.spec)
        while True:
            try:
                async with handshakes:
                    identity = Identity.load(self.crowd.identities / self.name)
                    address = Address(
                        HOST,
                        self.crowd.port,
                        KEEPALIVE_S,
                        f"{self.name}-{self.run_id.hex()[:8]}",
                        identity.ssl_context(),
                    )
                    lost = frame(certify(pb.DEVICE_STATE_OFFLINE_LOST, "lost"))
                    connection = await Connection.open(
                        address,
                        Will(topics.status(self.name), lost),
                        on_message=lambda _, payload: self.hear(payload),
                        on_lost=self.wake.set,
                    )
                    await connection.subscribe(topics.ack(self.name), qos=0)
            except ShoalError:
                await asyncio.sleep(backoff(attempt, base_s=0.25, cap_s=10.0, rng=self.rng))
                attempt += 1
                continue
            born = frame(certify(pb.DEVICE_STATE_ONLINE, "connected"))
            connection.publish(topics.status(self.name), born, qos=1, retain=True)
            self.flights = all_due(self.flights, time.monotonic())
            self.connection = connection
            self.connections += 1
            return

    def hear(self, payload: bytes) -> None:
        """Forgets what the learner acknowledged."""
        now = time.monotonic()
        for run in unframe(pb.Ack, payload).runs:
            if run.run_id != self.run_id:
                continue
            held = self.ledger.spooled.intersection(Ranges.from_pb(run.settled))
            for seq in held:
                self.latency_ms.append((now - self.first_sent_s.pop(seq)) * 1e3)
            if held:
                spooled = self.ledger.spooled.difference(held)
                self.ledger = RunLedger(self.run_id, self.ledger.produced, spooled)
                self.wake.set()

    def produce(self) -> None:
        """Records a chunk."""
        seq = self.ledger.produced
        self.ledger = self.ledger.after(produced=seq + 1, spooled=Ranges.of([seq]))
        self.wake.set()

    def send(self) -> float:
        """Sends what is due; returns when to look again, monotonic."""
        todo = plan(self.flights, (self.ledger,), time.monotonic(), TIMING)
        connection = self.connection
        if connection is None or connection.lost.is_set():
            return time.monotonic() + 1.0
        self.flights = todo.flights
        topic, bodies = Topics(FLEET).trajectory(self.name), self.crowd.bodies
        for flight in todo.send:
            key = ChunkKey(self.name, self.run_id, flight.seq)
            oldest = self.ledger.spooled.spans[0][0]
            body = bodies[flight.seq % len(bodies)]
            self.first_sent_s.setdefault(flight.seq, time.monotonic())
            self.resent += flight.attempts > 1
            connection.publish(topic, encode_envelope(Envelope(key, body, oldest)), qos=1)
        return todo.wake_s

    def report(self, qos: int) -> int:
        """Sends telemetry with the ledger; returns what `delivered` wants."""
        if self.connection is None or self.connection.lost.is_set():
            return 0
        dropped = NOTHING.to_pb()
        telemetry = pb.Telemetry(
            device_id=self.name,
            run_id=self.run_id,
            sent_unix_ms=int(time.time() * 1000),
            uptime_s=time.monotonic() - self.started_s,
            active_version=1,
            ledger=[
                pb.RunLedger(
                    run_id=self.run_id,
                    produced=self.ledger.produced,
                    spooled=self.ledger.spooled.to_pb(),
                    dropped=dropped,
                )
            ],
        )
        return self.connection.publish(
            Topics(FLEET).telemetry(self.name), frame(telemetry), qos=qos
        )

    async def act(self, stop: asyncio.Event, handshakes: asyncio.Semaphore) -> None:
        """Produces, sends and reports until `stop`, then drains and says farewell."""
        chunk_s, report_s = self.crowd.chunk_s, self.crowd.telemetry_s
        now = time.monotonic()
        next_chunk = now + self.rng.uniform(0, chunk_s) if chunk_s else float("inf")
        next_report = now + self.rng.uniform(0, report_s)
        give_up = float("inf")
        while give_up > time.monotonic():
            now = time.monotonic()
            if stop.is_set():
                give_up = min(give_up, now + self.crowd.drain_s)
                next_chunk = float("inf")
                if not self.ledger.spooled:
                    break
            if now >= next_chunk:
                self.produce()
                next_chunk += chunk_s
            if now >= next_report:
                self.report(qos=0)
                next_report += report_s
            if self.connection is None or self.connection.lost.is_set():
                await self.connect(handshakes)
            self.wake.clear()
            until = min(self.send(), next_chunk, next_report, give_up, now + 1.0)
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self.wake.wait()
            except TimeoutError:
                continue
        mid = self.report(qos=1)
        if self.connection is not None:
            await self.connection.delivered(mid, FAREWELL_S)


async def _simulate(crowd: Crowd, pipe: Pipe) -> None:
    handshakes = asyncio.Semaphore(CONNECTS_AT_ONCE)
    devices = [Device(name, crowd, random.Random(name)) for name in crowd.devices]
    async with asyncio.TaskGroup() as group:
        for device in devices:
            group.create_task(device.connect(handshakes))
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    stop, cpu_s = asyncio.Event(), _cpu_s()
    acting = [asyncio.ensure_future(device.act(stop, handshakes)) for device in devices]
    await asyncio.to_thread(pipe.recv)
    cpu_s = _cpu_s() - cpu_s
    stop.set()
    await asyncio.gather(*acting)
    latency: deque[float] = deque()
    for device in devices:
        latency.extend(device.latency_ms)
    pipe.send(
        CrowdResult(
            {device.run_id.hex(): device.ledger.produced for device in devices},
            sum(device.ledger.spooled.count() for device in devices),
            sum(device.resent for device in devices),
            sum(device.connections for device in devices),
            list(latency),
            cpu_s,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
    )
    await asyncio.to_thread(pipe.recv)
    for device in devices:
        if device.connection is not None:
            device.connection.close()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
