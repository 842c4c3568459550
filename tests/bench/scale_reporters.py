"""Thousands of devices that only report status and telemetry, over a few shared sessions."""

import asyncio
import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from bench.fleet_site import FLEET, HOST
from bench.stream_device import DeviceCertificate
from bench.stream_learner import cpu_s

from edge_agent.uplink.connection import Address, Connection
from shoal.identity import Identity
from shoal.noise import RUN_ID_BYTES
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame

KEEPALIVE_S = 20
BIRTHS_AT_ONCE = 50
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Reporters:
    """What the process of reporting devices is told.

    Attributes:
        devices: Their names.
        sessions: The names of the sessions that they share.
        identities: Directory of identity directories.
        port: Of the broker.
        spec: The spaces, serialized.
        telemetry_s: Seconds between two reports of a device.
    """

    devices: tuple[str, ...]
    sessions: tuple[str, ...]
    identities: Path
    port: int
    spec: bytes
    telemetry_s: float


@dataclass(frozen=True, slots=True)
class Reported:
    """How it went.

    Attributes:
        reports: Telemetry messages sent.
        lost_sessions: Sessions that the broker ended.
        cpu_s: Processor time of the process between `go` and `stop`.
    """

    reports: int
    lost_sessions: int
    cpu_s: float


def report(reporters: Reporters, pipe: Pipe) -> None:
    """Tells of all births, says "ready", reports from "go" to "stop", and answers `Reported`."""
    asyncio.run(_report(reporters, pipe))


async def _report(reporters: Reporters, pipe: Pipe) -> None:
    topics, rng = Topics(FLEET), random.Random(0)
    sessions = [await _session(reporters, name) for name in reporters.sessions]
    runs = {name: rng.randbytes(RUN_ID_BYTES) for name in reporters.devices}
    for at, (name, run_id) in enumerate(runs.items()):
        session = sessions[at % len(sessions)]
        status = DeviceCertificate(name, run_id, reporters.spec)(pb.DEVICE_STATE_ONLINE, "up")
        mid = session.publish(topics.status(name), frame(status), qos=1, retain=True)
        if at % BIRTHS_AT_ONCE == 0:
            await session.delivered(mid, 30.0)
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    stop, used_s, count = asyncio.Event(), cpu_s(), 0

    async def tell() -> None:
        nonlocal count
        started_s, names = time.monotonic(), list(runs)
        while not stop.is_set():
            due = int((time.monotonic() - started_s) / reporters.telemetry_s * len(names))
            while count < due:
                name = names[count % len(names)]
                _telemetry(sessions[count % len(sessions)], topics, name, runs[name])
                count += 1
            await asyncio.sleep(TICK_S)

    telling = asyncio.ensure_future(tell())
    await asyncio.to_thread(pipe.recv)
    stop.set()
    await telling
    lost = sum(session.lost.is_set() for session in sessions)
    pipe.send(Reported(count, lost, cpu_s() - used_s))
    await asyncio.to_thread(pipe.recv)
    for session in sessions:
        session.close()


async def _session(reporters: Reporters, name: str) -> Connection:
    tls = Identity.load(reporters.identities / name).ssl_context()
    address = Address(HOST, reporters.port, KEEPALIVE_S, name, tls)
    return await Connection.open(address, None, on_message=lambda *_: None, on_lost=lambda: None)


def _telemetry(session: Connection, topics: Topics, name: str, run_id: bytes) -> None:
    message = pb.Telemetry(
        device_id=name,
        run_id=run_id,
        sent_unix_ms=int(time.time() * 1000),
        uptime_s=time.monotonic(),
        active_version=1,
        ledger=[pb.RunLedger(run_id=run_id, produced=0)],
    )
    session.publish(topics.telemetry(name), frame(message), qos=0)
