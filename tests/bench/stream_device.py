"""The sending side of `shoal bench stream`: whole devices without an environment, or bare paho."""

import asyncio
import random
import resource
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import paho.mqtt.client as mqtt
from bench.child import now_s
from bench.fleet_site import FLEET, HOST
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config import BrokerConfig
from edge_agent.events import Events
from edge_agent.spool.run_ledger import RunLedger
from edge_agent.spool.spool import Spool
from edge_agent.uplink.uplink import Uplink
from shoal.envelope import ChunkKey, Envelope, encode_envelope
from shoal.identity import Identity
from shoal.noise import RUN_ID_BYTES
from shoal.topics import Topics
from shoal.v1 import device_pb2 as pb
from shoal.v1 import space_pb2

FLUSH_S = 120.0
SPOOL_BYTES = 4 * 2**30
RAW_WINDOW = 64
"""Messages in flight of one bare sender; paho's own default of 20 is no faster here."""


@dataclass(frozen=True, slots=True)
class Senders:
    """What one process of senders is told.

    Attributes:
        devices: Their names.
        identities: Directory of identity directories.
        port: Of the broker.
        directory: For the spools.
        bodies: Chunks, sent in turn.
        spec: The spaces, serialized.
        chunks: How many each device sends.
        window: W, in flight for each device.
    """

    devices: tuple[str, ...]
    identities: Path
    port: int
    directory: Path
    bodies: tuple[bytes, ...]
    spec: bytes
    chunks: int
    window: int


@dataclass(frozen=True, slots=True)
class Sent:
    """How it went.

    Attributes:
        started_s: The monotonic clock at the first send.
        ended_s: When nothing was left to be acknowledged.
        cpu_s: Processor time of the process between.
        resent: Chunks sent more than once.
        produced: By run id, as hexadecimal, how many chunks it made.
    """

    started_s: float
    ended_s: float
    cpu_s: float
    resent: int
    produced: dict[str, int]


def send_from_spools(senders: Senders, pipe: Pipe) -> None:
    """Fills spools, says "ready", waits for "go", and sends until all is acknowledged."""
    asyncio.run(_send_from_spools(senders, pipe))


def send_bare(senders: Senders, pipe: Pipe) -> None:
    """The same bytes to the same topics with nothing but paho, at QoS 1."""
    topics = Topics(FLEET)
    run_id = bytes(RUN_ID_BYTES)
    clients = [_bare_client(senders, name) for name in senders.devices]
    payloads = {
        name: [
            encode_envelope(Envelope(ChunkKey(name, run_id, seq), body, 0))
            for seq, body in enumerate(_turns(senders.bodies, senders.chunks))
        ]
        for name in senders.devices
    }
    pipe.send("ready")
    pipe.recv()
    started_s, cpu_s = now_s(), _cpu_s()
    for at in range(senders.chunks):
        for name, client in zip(senders.devices, clients, strict=True):
            info = client.publish(topics.trajectory(name), payloads[name][at], qos=1)
    for client in clients:
        while client._out_messages:
            time.sleep(0.002)
    info.wait_for_publish(FLUSH_S)
    sent = Sent(started_s, now_s(), _cpu_s() - cpu_s, 0, {})
    for client in clients:
        client.disconnect()
        client.loop_stop()
    pipe.send(sent)


def _bare_client(senders: Senders, name: str) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"{name}-bare")
    client.tls_set_context(Identity.load(senders.identities / name).ssl_context())
    client.max_inflight_messages_set(RAW_WINDOW)
    admitted = threading.Event()
    client.on_connect = lambda *_: admitted.set()
    client.connect(HOST, senders.port)
    client.loop_start()
    if not admitted.wait(FLUSH_S):
        raise SystemExit(f"the broker does not admit {name}")
    return client


async def _send_from_spools(senders: Senders, pipe: Pipe) -> None:
    async with AsyncExitStack() as stack:
        spools: dict[str, _HeldSpool] = {}
        uplinks: list[Uplink] = []
        runs = {name: random.randbytes(RUN_ID_BYTES) for name in senders.devices}
        events = {name: Events(name, run_id, clock=time.time) for name, run_id in runs.items()}
        for name, run_id in runs.items():
            spools[name] = stack.enter_context(
                _HeldSpool(
                    senders.directory / f"{name}.sqlite",
                    max_bytes=SPOOL_BYTES,
                    run_id=run_id,
                    events=events[name],
                )
            )
            for body in _turns(senders.bodies, senders.chunks):
                spools[name].append(body, policy_version=1)
                spools[name].flush(FLUSH_S)  # what the queue in memory cannot hold is dropped
            spools[name].held = True
        for name, run_id in runs.items():
            uplinks.append(
                await stack.enter_async_context(
                    Uplink(
                        BrokerConfig(HOST, senders.port, window_chunks=senders.window),
                        Identity.load(senders.identities / name),
                        spools[name],
                        events[name],
                        topics=Topics(FLEET),
                        certificate=DeviceCertificate(name, run_id, senders.spec),
                        run_id=run_id,
                    )
                )
            )
        serving = [asyncio.create_task(uplink.serve()) for uplink in uplinks]
        while not all(uplink.connected for uplink in uplinks):  # noqa: ASYNC110 - as the learner's
            await asyncio.sleep(0.01)
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        started_s, cpu_s = now_s(), _cpu_s()
        for spool in spools.values():
            spool.release()
        await _until_empty(list(spools.values()))
        sent = Sent(
            started_s,
            now_s(),
            _cpu_s() - cpu_s,
            sum(uplink.counters.resent_chunks for uplink in uplinks),
            {run_id.hex(): senders.chunks for run_id in runs.values()},
        )
        pipe.send(sent)
        await asyncio.to_thread(pipe.recv)  # the learner has read all it wants to know
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class _HeldSpool(Spool):
    """Seems empty until it is released: connecting is no part of the measurement on either side."""

    held = False

    def ledger(self) -> tuple[RunLedger, ...]:
        """Nothing, or what is there."""
        return () if self.held else super().ledger()

    def release(self) -> None:
        """Shows what is there, and tells whoever listens."""
        self.held = False
        self.expire()


async def _until_empty(spools: Sequence[Spool]) -> None:
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    async with AsyncExitStack() as stack:
        for spool in spools:
            stack.enter_context(spool.listening(wake))
        while any(run.spooled for spool in spools for run in spool.ledger()):
            changed.clear()
            await changed.wait()


@dataclass(frozen=True, slots=True)
class DeviceCertificate:
    """Makes the status messages of a device that has no environment."""

    device_id: str
    run_id: bytes
    spec: bytes

    def __call__(self, state: pb.DeviceState, reason: str) -> pb.Status:
        return pb.Status(
            device_id=self.device_id,
            run_id=self.run_id,
            state=state,
            reason=reason,
            env_spec=space_pb2.EnvSpec.FromString(self.spec),
        )


def _turns(bodies: Sequence[bytes], count: int) -> list[bytes]:
    return [bodies[at % len(bodies)] for at in range(count)]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
