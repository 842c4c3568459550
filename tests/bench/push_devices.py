"""Several devices in one process; `push_latency` starts it and tells it who they are.

It reads one line of JSON, prints a line when every device has its first policy, and when its input
ends, what became active when, `[[version, seconds of the monotonic clock], ...]`, and the processor
time since that line: `{"active": ..., "cpu_s": ...}`.
"""

import asyncio
import contextlib
import functools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.child import now_s

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import Downlink, open_channel
from edge_agent.downlink.policy_stream import PolicyStream
from edge_agent.events import Events
from edge_agent.policies.policy_saver import PolicySaver
from edge_agent.policies.policy_store import PolicyStore
from shoal.identity import Identity
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    Assembler,
    Bundle,
    PayloadPart,
    check_digests,
    decode_bundle,
    decode_manifest,
)
from shoal.policy_delta import Base, Content, decode_policy_delta
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

SPEC = EnvSpec("Test-v0", unbounded((8,)), Discrete(4))
Note = Callable[[int], None]


async def agent(told: dict[str, Any], name: str, note: Note) -> None:
    """A policy store and its downlink, as in a device."""
    identity = Identity.load(Path(told["identities"]) / name)
    with PolicyStore(
        Path(told["state"]) / name,
        fleet="bench",
        public_key=bytes.fromhex(told["public_key"]),
        spec=SPEC,
    ) as policies:
        events = Events(name, bytes(16), clock=time.time)
        config = ServerConfig(port=told["port"])
        downlink = Downlink(config, identity, policies, events, fleet="bench", run_id=bytes(16))

        def changed() -> None:
            if (current := policies.current) is not None:
                note(current.version)

        with policies.listening(changed):
            saver = PolicySaver(policies)
            await asyncio.gather(downlink.follow(), downlink.report_active(), saver.serve())


@functools.lru_cache(maxsize=8)
def restored(payload: bytes, base: Bundle) -> bytes:
    """Once for all watchers of this process that get the same from the same."""
    return decode_policy_delta(payload).restore(Content.of(base))


@functools.lru_cache(maxsize=8)
def checked(payload: bytes) -> Bundle:
    """The same of its hashes."""
    bundle = decode_bundle(payload)
    check_digests(decode_manifest(bundle.manifest), bundle)
    return bundle


async def watcher(told: dict[str, Any], name: str, note: Note, *, bare: bool) -> None:
    """Reads each policy and says that it acts; of a bare stream it only reads."""
    identity = Identity.load(Path(told["identities"]) / name)
    assembler = Assembler(MAX_BUNDLE_BYTES)
    held: dict[Base, Bundle] = {}
    async with open_channel(ServerConfig(port=told["port"]), identity) as channel:
        stream = PolicyStream(ParameterServerStub(channel), opened=lambda: None)
        request = pb.WatchRequest(
            fleet="bench",
            device_id=name,
            accepts_delta=not bare,
            accepts_compressed_delta=not bare,
        )
        async for part in stream.parts(request):
            if bare:
                note(part.version)
                continue
            whole = PayloadPart(part.total_bytes, part.offset, part.data, part.digest)
            payload = assembler.add(whole)
            if payload is None:
                continue
            if part.kind == pb.PAYLOAD_KIND_DELTA:
                delta = decode_policy_delta(payload)
                base = held.get(delta.base)
                if base is None:  # this version is missed, and counted so
                    acts = [*held][-1]
                    report = pb.ReportActiveRequest(
                        fleet="bench",
                        device_id=name,
                        version=acts.version,
                        digest=acts.digest,
                        handled_version=part.version,
                    )
                    await stream.report(report)
                    continue
                payload = restored(payload, base)
            bundle = checked(payload)
            manifest = decode_manifest(bundle.manifest)
            held = {**dict([*held.items()][-1:]), Base.of(manifest): bundle}  # as a device does
            note(part.version)
            report = pb.ReportActiveRequest(
                fleet="bench", device_id=name, version=manifest.version, digest=manifest.digest
            )
            await stream.report(report)


async def main() -> None:
    """Runs every device until the input ends."""
    told = json.loads(sys.stdin.readline())
    active: list[tuple[int, float]] = []
    ready: set[str] = set()
    everyone = asyncio.Event()
    loop = asyncio.get_running_loop()
    names = told["names"]

    def note(name: str, version: int) -> None:  # in any thread
        active.append((version, now_s()))
        ready.add(name)
        if len(ready) == len(names):
            loop.call_soon_threadsafe(everyone.set)

    def device(name: str) -> Awaitable[None]:
        if told["kind"] == "agents":
            return agent(told, name, functools.partial(note, name))
        bare = told["kind"] == "bare"
        return watcher(told, name, functools.partial(note, name), bare=bare)

    running = asyncio.gather(*map(device, names))
    waiting = asyncio.ensure_future(everyone.wait())
    both: set[asyncio.Future[Any]] = {running, waiting}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    used_s = time.process_time()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    used_s = time.process_time() - used_s
    sys.stdout.write(json.dumps({"active": active, "cpu_s": used_s}) + "\n")
    sys.stdout.flush()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
