"""A fleet in memory: devices with spools that restart, fill up and lose messages.

device = SimDevice("pi-1")
device.produce(body)
message = device.message(device.held()[0])     # what it would publish
device.hear_ack(payload)                       # what the learner answered
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import ParamSpec

from cloud_learner.uplink.inbox import Message
from shoal.envelope import ChunkKey, Envelope, encode_envelope
from shoal.ranges import Ranges
from shoal.spaces import EnvSpec
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame, unframe

TOPICS = Topics("demo")
DEADLINE_S = 60.0
"""When a test that hangs fails; never how long it takes."""

P = ParamSpec("P")


def on_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Runs an async test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what other tasks and threads bring about; a hang fails by the deadline."""
    while not holds():  # noqa: ASYNC110 - any part may make it true
        await asyncio.sleep(0.001)  # not 0: that would keep the interpreter from the threads


@dataclass
class SimRun:
    """The chunks of one run."""

    run_id: bytes
    produced: int = 0
    spooled: dict[int, bytes] = field(default_factory=dict)
    dropped: Ranges = field(default_factory=Ranges)
    expired: Ranges = field(default_factory=Ranges)


@dataclass
class SimDevice:
    """A device as the learner sees it."""

    device_id: str
    runs: list[SimRun] = field(default_factory=list)
    starts: int = 0
    reports: int = 0

    def __post_init__(self) -> None:
        self.restart()

    @property
    def run(self) -> SimRun:
        return self.runs[-1]

    def restart(self) -> None:
        """A new run; what earlier ones left in the spool stays there."""
        self.starts += 1
        self.runs.append(SimRun(f"{self.device_id}-{self.starts}".encode().ljust(16, b"\0")[:16]))

    def produce(self, body: bytes) -> ChunkKey:
        run = self.run
        key = ChunkKey(self.device_id, run.run_id, run.produced)
        run.spooled[run.produced] = body
        run.produced += 1
        return key

    def held(self) -> list[ChunkKey]:
        return [
            ChunkKey(self.device_id, run.run_id, seq) for run in self.runs for seq in run.spooled
        ]

    def drop(self, key: ChunkKey) -> None:
        """Gives a chunk up, and says so in the ledger."""
        run = self._run_of(key.run_id)
        del run.spooled[key.seq]
        run.dropped = run.dropped.add(key.seq)

    def expire(self, key: ChunkKey) -> None:
        """Finds that a chunk is too old to send, and says so in the ledger."""
        run = self._run_of(key.run_id)
        del run.spooled[key.seq]
        run.expired = run.expired.add(key.seq)

    def lose(self, key: ChunkKey) -> None:
        """A fault: deletes a chunk that nobody acknowledged."""
        del self._run_of(key.run_id).spooled[key.seq]

    def message(self, key: ChunkKey) -> Message:
        run = self._run_of(key.run_id)
        envelope = Envelope(key, run.spooled[key.seq], oldest_seq=min(run.spooled))
        return Message(TOPICS.trajectory(self.device_id), encode_envelope(envelope))

    def hear_ack(self, payload: bytes) -> None:
        """Deletes what the learner decided on."""
        ack = unframe(pb.Ack, payload)
        assert ack.device_id == self.device_id
        for answer in ack.runs:
            settled = Ranges.from_pb(answer.settled)
            run = self._run_of(answer.run_id)
            run.spooled = {s: body for s, body in run.spooled.items() if not settled.contains(s)}

    def telemetry(self) -> pb.Telemetry:
        self.reports += 1
        return pb.Telemetry(
            device_id=self.device_id,
            run_id=self.run.run_id,
            uptime_s=float(self.reports),
            ledger=[
                pb.RunLedger(
                    run_id=run.run_id,
                    produced=run.produced,
                    spooled=Ranges.of(run.spooled).to_pb(),
                    dropped=run.dropped.to_pb(),
                    expired=run.expired.to_pb(),
                )
                for run in self.runs
            ],
        )

    def telemetry_message(self) -> Message:
        return Message(TOPICS.telemetry(self.device_id), frame(self.telemetry()))

    def status_message(
        self, spec: EnvSpec, state: pb.DeviceState = pb.DEVICE_STATE_ONLINE
    ) -> Message:
        status = pb.Status(
            device_id=self.device_id,
            run_id=self.run.run_id,
            state=state,
            env_spec=spec.to_pb(),
            envs=2,
        )
        return Message(TOPICS.status(self.device_id), frame(status))

    def _run_of(self, run_id: bytes) -> SimRun:
        return next(run for run in self.runs if run.run_id == run_id)
