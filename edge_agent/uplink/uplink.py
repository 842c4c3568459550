"""The uplink: sends what the spool holds until the learner, not the broker, acknowledges it.

It wakes on a new chunk, an acknowledgement, an event or a lost connection, and plans what to send
with `edge_agent.uplink.window`. Connections come and go; the spool is what lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from edge_agent.config import BrokerConfig
from edge_agent.events import Events
from edge_agent.spool.spool import Spool
from edge_agent.uplink.appetite import Appetite, Wanted
from edge_agent.uplink.connection import Address, Connection, Will
from edge_agent.uplink.window import Flight, Timing, all_due, plan, silent_since
from shoal.envelope import ChunkKey, Envelope, encode_envelope
from shoal.errors import LimitExceeded, ShoalError, WireError
from shoal.identity import Identity
from shoal.ranges import Ranges
from shoal.services import backoff
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame, unframe

BACKOFF_BASE_S: Final = 0.25
BACKOFF_CAP_S: Final = 10.0
STEADY_S: Final = 10.0
"""A connection that held this long was a good one: the next backoff starts afresh."""
DRAIN_S: Final = 1.0
"""How long a stopping agent waits for the learner to take its last chunks."""
FLUSH_S: Final = 5.0
"""How long it waits for its own disk before that."""
FAREWELL_S: Final = 2.0
"""How long it waits for the broker to take its farewell."""
LAST_WORD_S: Final = 5.0
"""How long an agent that failed without a connection tries to get one, to say why."""
RESEND_CAP: Final = 4.0
"""The longest wait for an acknowledgement, in `ack_timeout_s`."""

Report = Callable[[], pb.Telemetry]
Certificate = Callable[[pb.DeviceState, str], pb.Status]
"""Makes the status message for a state and its reason."""


@dataclass(slots=True)
class Counters:
    """What the uplink did in this run; read by any thread.

    Attributes:
        bytes_up: payload bytes published, resends included.
        sent_chunks: chunks sent, resends included.
        resent_chunks: those of them that were sent before.
        acked_chunks: chunks the learner acknowledged.
        connections: connections that came about.
        bad_messages: messages from the learner that made no sense.
    """

    bytes_up: int = 0
    sent_chunks: int = 0
    resent_chunks: int = 0
    acked_chunks: int = 0
    connections: int = 0
    bad_messages: int = 0


class Uplink:
    """The way of chunks, events and reports to the learner.

    async with Uplink(config, identity, spool, events, topics, certificate, run_id) as uplink:
        await uplink.serve()
    """

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        spool: Spool,
        events: Events,
        *,
        topics: Topics,
        certificate: Certificate,
        run_id: bytes,
        appetite: Appetite | None = None,
        drain_s: float = DRAIN_S,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects nothing yet.

        Args:
            config: the broker.
            identity: the device.
            spool: what to send.
            events: what else to send.
            topics: of the fleet.
            certificate: makes birth, farewell and last will.
            run_id: the present run, 16 bytes.
            appetite: told what the learner wants; None: nobody asks.
            drain_s: how long the end waits for the learner to take the last chunks.
            rng: of the backoff's jitter.
            clock: monotonic, seconds.
        """
        self.counters = Counters()
        self._config = config
        self._identity = identity
        self._device = identity.name
        self._spool = spool
        self._events = events
        self._topics = topics
        self._certificate = certificate
        self._appetite = appetite
        self._client_id = f"{identity.name}-{run_id.hex()[:8]}"
        self._rng = rng or random.Random()
        self._clock = clock
        self._drain_s = drain_s
        self._timing = Timing(
            config.window_chunks, config.ack_timeout_s, config.ack_timeout_s * RESEND_CAP
        )
        self._wake = asyncio.Event()
        self._flights: tuple[Flight, ...] = ()
        self._last_ack_s: float | None = None
        self._connection: Connection | None = None
        self._report: Report | None = None
        self._learner_lost = False
        self._trouble: str | None = None
        self._listening = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        """Listens to the spool and the events."""
        loop = asyncio.get_running_loop()

        def wake() -> None:  # from any thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake.set)

        self._listening.enter_context(self._spool.listening(wake))
        self._listening.enter_context(self._events.listening(wake))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hands over the last chunks if somebody takes them, says farewell, and disconnects."""
        if isinstance(error, Exception) and not self.connected:
            await self._connect_for_last_word()
        connection = self._connection
        try:
            if connection is not None and not connection.lost.is_set():
                await asyncio.to_thread(self._spool.flush, FLUSH_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0 if self._learner_lost else self._drain_s):
                        await self._pump(connection, until=self._is_spool_empty)
                await self._farewell(connection, error)
        finally:
            self._listening.close()
            if connection is not None:
                connection.close()

    async def _connect_for_last_word(self) -> None:
        """An agent that fails in its first moments is a death with a reason, not a silence."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await self._connect()

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker."""
        return self._connection is not None and not self._connection.lost.is_set()

    @property
    def learner_lost(self) -> bool:
        """Whether chunks wait, and the learner has been silent for too long."""
        return self._learner_lost

    def ack_age_s(self) -> float:
        """Seconds since the learner last acknowledged anything; negative: never."""
        return -1.0 if self._last_ack_s is None else self._clock() - self._last_ack_s

    def reconnect(self) -> None:
        """Has `serve` connect again, with the certificate as it is on the disk by then."""
        if self._connection is not None:
            self._connection.close()

    async def report_every(self, report: Report, interval_s: float) -> None:
        """Sends a report at once and then at the interval; ends only by being cancelled.

        QoS 0: without a connection a report is forgotten. The last one is part of the farewell.

        Args:
            report: makes a report of the present moment.
            interval_s: seconds between two.
        """
        self._report = report
        while True:
            self._send_report(qos=0)
            await asyncio.sleep(interval_s)

    def _send_report(self, *, qos: int) -> None:
        if self._connection is not None and self.connected and self._report is not None:
            topic = self._topics.telemetry(self._device)
            self._publish(self._connection, topic, frame(self._report()), qos=qos)

    async def serve(self) -> None:
        """Connects again and again, and sends; ends only by being cancelled."""
        attempt = 0
        while True:
            started_s = self._clock()
            try:
                connection = await self._connect()
            except ShoalError as error:  # no network, a refusal, or certificates in renewal
                self._tell_trouble(str(error))
            else:
                await self._pump(connection, until=lambda: False)
                connection.close()
                self._tell_trouble("the connection to the broker was lost")
                if self._clock() - started_s >= STEADY_S:
                    attempt = 0
            await asyncio.sleep(
                backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            )
            attempt += 1

    async def _connect(self) -> Connection:
        status_topic = self._topics.status(self._device)
        lost = self._certificate(pb.DEVICE_STATE_OFFLINE_LOST, "the connection was lost")
        connection = await Connection.open(
            Address(
                self._config.host,
                self._config.port,
                self._config.keepalive_s,
                self._client_id,
                self._identity.ssl_context(),
                self._device,
            ),
            Will(status_topic, frame(lost)),
            on_message=self._heard,
            on_lost=self._wake.set,
        )
        try:
            await connection.subscribe(self._topics.down(self._device), qos=0)
        except BaseException:
            connection.close()
            raise
        birth = self._certificate(pb.DEVICE_STATE_ONLINE, "connected")
        self._publish(connection, status_topic, frame(birth), qos=1, retain=True)
        self._connection = connection
        self._flights = all_due(self._flights, self._clock())
        self._send_report(qos=0)
        self.counters.connections += 1
        self._trouble = None
        self._events.emit(
            pb.SEVERITY_INFO,
            "broker_connected",
            f"connected to the broker {self._config.host}:{self._config.port}",
            connections=self.counters.connections,
        )
        return connection

    async def _pump(self, connection: Connection, *, until: Callable[[], bool]) -> None:
        """Sends until the connection is lost or `until` says so."""
        while not connection.lost.is_set() and not until():
            self._wake.clear()
            for event in self._events.take():
                self._publish(connection, self._topics.event(self._device), frame(event), qos=1)
            now = self._clock()
            lost_at = silent_since(self._flights, self._last_ack_s) + self._config.learner_lost_s
            if now >= lost_at and not self._learner_lost:
                self._tell_learner_lost()
            todo = plan(self._flights, self._spool.ledger(), now, self._timing)
            self._flights = todo.flights
            for flight in todo.send:
                self._send(connection, flight)
            silent = silent_since(self._flights, self._last_ack_s)
            lost_at = float("inf") if self._learner_lost else silent + self._config.learner_lost_s
            wait_s = min(todo.wake_s, lost_at) - now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if wait_s < float("inf") else None):
                    await self._wake.wait()

    def _send(self, connection: Connection, flight: Flight) -> None:
        chunk = self._spool.read(flight.run_id, flight.seq)
        if chunk is None:
            return  # the next plan knows
        key = ChunkKey(self._device, chunk.run_id, chunk.seq)
        try:
            payload = encode_envelope(Envelope(key, chunk.body, chunk.oldest_seq))
        except WireError as error:  # too large for any broker, or the disk changed its bytes
            reason = "size" if isinstance(error, LimitExceeded) else "damaged"
            self._spool.give_up(chunk.run_id, chunk.seq)
            self._events.emit(
                pb.SEVERITY_ERROR, "chunk_dropped", str(error), reason=reason, seq=chunk.seq
            )
            return
        self._publish(connection, self._topics.trajectory(self._device), payload, qos=1)
        self.counters.sent_chunks += 1
        self.counters.resent_chunks += flight.attempts > 1

    def _publish(
        self, connection: Connection, topic: str, payload: bytes, *, qos: int, retain: bool = False
    ) -> int:
        self.counters.bytes_up += len(payload)
        return connection.publish(topic, payload, qos=qos, retain=retain)

    def _heard(self, topic: str, payload: bytes) -> None:
        """The learner said something; kinds that this agent does not know are not for it."""
        match topic.rpartition("/")[2]:
            case "ack":
                self._heard_ack(payload)
            case "appetite":
                self._heard_appetite(payload)

    def _heard_appetite(self, payload: bytes) -> None:
        """What the learner wants: nothing waits for it, and it lapses when it is not repeated."""
        if self._appetite is None:
            return
        try:
            wanted = Wanted.from_pb(unframe(pb.Appetite, payload))
        except WireError as error:
            self._bad_message(str(error))
            return
        before = self._appetite.oldest_version
        if self._appetite.note(wanted) and wanted.oldest_version > before:
            self._spool.expire()

    def _heard_ack(self, payload: bytes) -> None:
        """The learner acknowledged something: only this ever empties the spool for good."""
        try:
            ack = unframe(pb.Ack, payload)
            settled = [(run.run_id, Ranges.from_pb(run.settled)) for run in ack.runs]
        except WireError as error:
            self._bad_message(str(error))
            return
        if ack.device_id != self._device:
            self._bad_message(f"an acknowledgement for {ack.device_id!r}")
            return
        self._last_ack_s = self._clock()
        for run_id, ranges in settled:
            self.counters.acked_chunks += self._spool.discard(run_id, ranges)
        if self._learner_lost:
            self._learner_lost = False
            self._flights = all_due(self._flights, self._last_ack_s)
            self._events.emit(pb.SEVERITY_INFO, "learner_back", "the learner acknowledges again")
        self._wake.set()

    def _bad_message(self, message: str) -> None:
        self.counters.bad_messages += 1
        if self.counters.bad_messages == 1:
            self._events.emit(pb.SEVERITY_WARNING, "bad_message", message)

    def _tell_learner_lost(self) -> None:
        self._learner_lost = True
        self._events.emit(
            pb.SEVERITY_WARNING,
            "learner_lost",
            f"no acknowledgement for {self._config.learner_lost_s:g} s; acting and spooling go on",
            flights=len(self._flights),
        )

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble, not at every attempt."""
        if message != self._trouble:
            self._trouble = message
            self._events.emit(
                pb.SEVERITY_WARNING, "broker_lost", f"{message}; acting and spooling go on"
            )

    def _is_spool_empty(self) -> bool:
        return not any(run.spooled for run in self._spool.ledger())

    async def _farewell(self, connection: Connection, error: BaseException | None) -> None:
        for event in self._events.take():
            self._publish(connection, self._topics.event(self._device), frame(event), qos=1)
        self._send_report(qos=1)
        farewell = (
            self._certificate(pb.DEVICE_STATE_OFFLINE_EXPECTED, "stopped")
            if error is None
            else self._certificate(
                pb.DEVICE_STATE_OFFLINE_LOST, f"failed: {str(error) or type(error).__name__}"
            )
        )
        topic = self._topics.status(self._device)
        mid = self._publish(connection, topic, frame(farewell), qos=1, retain=True)
        await connection.delivered(mid, FAREWELL_S)
