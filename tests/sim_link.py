"""Devices and a learner in memory, in simulated time, over links that do all a network can.

    world = World(rng, faults=Faults(loss=0.3, duplication=0.2, longest_delay_s=20.0))
    device = world.add_device(path)
    world.run(steps=200)

The spool and the window are the agent's own; only time, the broker and the learner are simulated.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.events import Events
from edge_agent.spool.spool import Spool
from edge_agent.uplink.window import Flight, Timing, all_due, plan
from shoal.envelope import ChunkKey
from shoal.ranges import Ranges

FLUSH_S = 30.0


@dataclass(frozen=True)
class Faults:
    """What the network and the machines do.

    Attributes:
        loss: share of messages that never arrive.
        duplication: share of messages that arrive twice.
        longest_delay_s: each copy takes up to this, so that messages overtake each other.
        device_restart: chance a step that a device's process is killed and started again.
        learner_restart: chance a step that the learner forgets all it had not journalled.
        reconnection: chance a step that a device's connection breaks.
    """

    loss: float = 0.0
    duplication: float = 0.0
    longest_delay_s: float = 0.0
    device_restart: float = 0.0
    learner_restart: float = 0.0
    reconnection: float = 0.0


@dataclass
class Link:
    """Carries messages one way: loses, doubles, delays and reorders them."""

    rng: random.Random
    faults: Faults
    deliver: Callable[[object], None]
    _on_the_way: list[tuple[float, int, object]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def send(self, message: object, now_s: float) -> None:
        copies = 1 + (self.rng.random() < self.faults.duplication)
        for _ in range(0 if self.rng.random() < self.faults.loss else copies):
            arrives_s = now_s + self.rng.uniform(0.0, self.faults.longest_delay_s)
            heapq.heappush(self._on_the_way, (arrives_s, next(self._order), message))

    def run(self, now_s: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            self.deliver(heapq.heappop(self._on_the_way)[2])


@dataclass(frozen=True)
class Sent:
    """A chunk on its way."""

    key: ChunkKey
    body: bytes


@dataclass(frozen=True)
class Settled:
    """An acknowledgement on its way."""

    run_id: bytes
    settled: Ranges


@dataclass
class SimLearner:
    """Journals each chunk once and acknowledges what its journal holds."""

    journal: dict[ChunkKey, bytes] = field(default_factory=dict)
    duplicates: int = 0
    _unwritten: dict[ChunkKey, bytes] = field(default_factory=dict)

    def hear(self, sent: Sent) -> None:
        if sent.key in self.journal:
            self.duplicates += 1
            assert self.journal[sent.key] == sent.body
        else:
            self._unwritten[sent.key] = sent.body

    def commit(self) -> None:
        self.journal.update(self._unwritten)
        self._unwritten.clear()

    def restart(self) -> None:
        self._unwritten.clear()

    def settled(self, device_id: str, run_id: bytes) -> Ranges:
        return Ranges.of(
            key.seq for key in self.journal if (key.device_id, key.run_id) == (device_id, run_id)
        )


class SimDevice:
    """A spool and a window, without a network of their own."""

    def __init__(self, device_id: str, path: Path, timing: Timing, max_bytes: int) -> None:
        self.device_id = device_id
        self.produced: dict[ChunkKey, bytes] = {}
        self._path = path
        self._timing = timing
        self._max_bytes = max_bytes
        self._runs = itertools.count()
        self._flights: tuple[Flight, ...] = ()
        self._open()

    def _open(self) -> None:
        self.run_id = next(self._runs).to_bytes(16, "big")
        self.spool = Spool(
            self._path,
            max_bytes=self._max_bytes,
            run_id=self.run_id,
            events=Events(self.device_id, self.run_id, clock=lambda: 0.0),
        )
        self.spool.__enter__()

    def produce(self, body: bytes) -> None:
        seq = self.spool.append(body, 1)
        self.produced[ChunkKey(self.device_id, self.run_id, seq)] = body
        assert self.spool.flush(FLUSH_S)

    def step(self, now_s: float) -> list[Sent]:
        """What it sends now."""
        sent: list[Sent] = []
        done = plan(self._flights, self.spool.ledger(), now_s, self._timing)
        self._flights = done.flights
        assert len(done.flights) <= self._timing.window_chunks
        for flight in done.send:
            chunk = self.spool.read(flight.run_id, flight.seq)
            assert chunk is not None
            sent.append(Sent(ChunkKey(self.device_id, chunk.run_id, chunk.seq), chunk.body))
        return sent

    def hear(self, ack: Settled) -> None:
        self.spool.discard(ack.run_id, ack.settled)
        assert self.spool.flush(FLUSH_S)

    def reconnect(self, now_s: float) -> None:
        self._flights = all_due(self._flights, now_s)

    def restart(self) -> None:
        self.close()
        self._flights = ()
        self._open()

    def close(self) -> None:
        self.spool.__exit__(None, None, None)


class World:
    """Devices, a learner, and the links between them."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self.now_s = 0.0
        self.learner = SimLearner()
        self.devices: list[SimDevice] = []
        self._rng = rng
        self._faults = faults
        self._up: list[Link] = []
        self._down: list[Link] = []

    def add_device(
        self, path: Path, *, window_chunks: int = 4, max_bytes: int = 2**20
    ) -> SimDevice:
        timing = Timing(window_chunks, ack_timeout_s=5.0, longest_s=20.0)
        device = SimDevice(f"pi-{len(self.devices)}", path, timing, max_bytes)
        self.devices.append(device)
        self._up.append(Link(self._rng, self._faults, self._heard))
        self._down.append(Link(self._rng, self._faults, lambda m: self._acked(device, m)))
        return device

    def step(self, *, produce: bool) -> None:
        """One second."""
        self.now_s += 1.0
        for device, up, down in zip(self.devices, self._up, self._down, strict=True):
            if produce:
                device.produce(self._rng.randbytes(self._rng.randrange(1, 60)))
            if self._rng.random() < self._faults.device_restart:
                device.restart()
            if self._rng.random() < self._faults.reconnection:
                device.reconnect(self.now_s)
            for sent in device.step(self.now_s):
                up.send(sent, self.now_s)
            up.run(self.now_s)
            if self._rng.random() < self._faults.learner_restart:
                self.learner.restart()
            self.learner.commit()
            for run in device.spool.ledger():
                settled = self.learner.settled(device.device_id, run.run_id)
                if settled:
                    down.send(Settled(run.run_id, settled), self.now_s)
            down.run(self.now_s)

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self._faults = Faults()
        for link in (*self._up, *self._down):
            link.faults = self._faults

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def _heard(self, message: object) -> None:
        assert isinstance(message, Sent)
        self.learner.hear(message)

    def _acked(self, device: SimDevice, message: object) -> None:
        assert isinstance(message, Settled)
        device.hear(message)
