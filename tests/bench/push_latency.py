"""How long a policy takes from its publication until every device acts with it."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import numpy as np
from bench.child import now_s
from bench.push_cost import case_of, nudge
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.identity import Identity
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki.pki import FleetPki, Role

CHILD = "import asyncio; from bench.push_devices import main; asyncio.run(main())"
TESTS = Path(__file__).resolve().parents[1]
FLEET = "bench"
_READY_S = 300.0
Kind = Literal["agents", "watchers", "bare"]


@dataclass(frozen=True, slots=True)
class Round:
    """Whom policies are pushed to.

    Attributes:
        kind: `agents` prove and build each policy as a device does; `watchers` restore and hash it
            once a process; `bare` only receive as many bytes.
        devices: How many.
        processes: Over so many processes.
        versions: Published one after the other.
        interval_s: Between two of them.
    """

    kind: Kind
    devices: int
    processes: int
    versions: int
    interval_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """From publication (durable, about to be announced) to acting, over all devices and versions.

    Attributes:
        payload_bytes: Of a refresh, mean.
        missed: Refreshes that a device skipped for a newer one, or had not when it ended.
        device_cpu_ms: Processor time of the devices' processes for one refresh of one device:
            receiving, acting with it, telling so, saving. Devices of one machine share its
            processors, so none can be the last of n before n times this over their number.
        server_cpu_ms: Of the server for one refresh of one device, without making the policy.
    """

    kind: str
    devices: int
    versions: int
    payload_bytes: int
    p50_ms: float
    p99_ms: float
    largest_ms: float
    missed: int
    device_cpu_ms: float
    server_cpu_ms: float

    def as_json(self) -> dict[str, object]:
        """As it is."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Told:
    """What a process with devices says when it ends.

    Attributes:
        active: Version and second of the monotonic clock when it became active.
        cpu_s: Processor time that it used while policies were pushed.
    """

    active: Sequence[tuple[int, float]]
    cpu_s: float


class BareStream(rpc.ParameterServerServicer):
    """Sends the same bytes to whoever watches, and does nothing else."""

    def __init__(self, payload_bytes: int) -> None:
        self._data = np.random.default_rng(0).bytes(payload_bytes)
        self._version = 1
        self._changed = asyncio.Event()

    def announce(self, version: int) -> None:
        """Has every watcher get a part."""
        self._version = version
        self._changed.set()
        self._changed = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_ParameterServerServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Nothing to end: callers cancel."""

    async def Watch(  # noqa: N802 - the name in the proto
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Part]:
        """One part for each version."""
        while True:
            changed = self._changed
            yield pb.Part(version=self._version, total_bytes=len(self._data), data=self._data)
            await changed.wait()

    async def Follow(  # noqa: N802 - the name in the proto
        self,
        request_iterator: AsyncIterator[pb.FollowRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.Part]:
        """The same."""
        async for part in self.Watch((await anext(aiter(request_iterator))).watch, context):
            yield part


def ratios_to_bare(latencies: Sequence[Latency]) -> list[dict[str, object]]:
    """How much longer policies take than as many bytes alone, of rounds with as many devices."""
    bare = {each.devices: each for each in latencies if each.kind == "bare"}
    return [
        {
            "kind": each.kind,
            "devices": each.devices,
            "p50": round(each.p50_ms / bare[each.devices].p50_ms, 3),
            "p99": round(each.p99_ms / bare[each.devices].p99_ms, 3),
        }
        for each in latencies
        if each.kind != "bare" and each.devices in bare
    ]


async def latency_of(plan: Round, directory: Path, dead_zone: float) -> Latency:
    """Publishes policies to devices that run in processes of their own."""
    pki = FleetPki.create(directory / "pki", FLEET)
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)
    names = [f"pi-{number}" for number in range(plan.devices)]
    for name in names:
        pki.issue(name, Role.DEVICE)
    key = Ed25519PrivateKey.generate()
    case, sample = case_of("mlp 2x256")
    quantizer = Quantizer(case.policy, kl_max=1e9, dead_zone=dead_zone)
    announced: dict[int, float] = {}
    async with AsyncExitStack() as stack:
        log = stack.enter_context(PolicyLog(directory / "policies", key, FLEET, keep=8))

        def publish() -> Any:  # noqa: ANN401 - a Published; of no interest to the bare stream
            nudge(case)
            quantized = quantizer.quantize(case.policy, sample)
            return log.publish(
                quantized,
                graph=quantizer.graphs[quantized.precision],
                updates=log.highest_version,
                spec_fingerprint=case.spec.fingerprint,
            )

        server = ParameterServer(log, fleet=FLEET)
        bare = BareStream(9_000)
        service = bare if plan.kind == "bare" else server
        endpoint = await stack.enter_async_context(GrpcServer("127.0.0.1", 0, identity, [service]))
        server.announce(await asyncio.to_thread(publish))
        children = [
            await _start(plan, directory, endpoint.port, names[at :: plan.processes], key)
            for at in range(plan.processes)
        ]
        async with asyncio.timeout(_READY_S):
            for child in children:
                await _line(child)
        await asyncio.sleep(plan.interval_s)
        before = server.total_traffic()
        server_s = time.process_time()
        for _ in range(plan.versions):
            making_s = time.process_time()
            published = await asyncio.to_thread(publish)
            server_s += time.process_time() - making_s
            announced[published.version] = now_s()
            bare.announce(published.version)
            server.announce(published)
            await asyncio.sleep(plan.interval_s)
        await asyncio.sleep(2.0 * plan.interval_s)
        server_s = time.process_time() - server_s
        sent = server.total_traffic()
        told = [await _stop(child) for child in children]
    taken = [
        1e3 * (at_s - announced[version])
        for each in told
        for version, at_s in each.active
        if version in announced
    ]
    refreshes = max(1, sent.refreshes - before.refreshes)
    payload = (sent.bytes_down - before.bytes_down) / refreshes if plan.kind != "bare" else 9_000
    return Latency(
        kind=plan.kind,
        devices=plan.devices,
        versions=plan.versions,
        payload_bytes=int(payload),
        p50_ms=round(float(np.percentile(taken, 50)), 1),
        p99_ms=round(float(np.percentile(taken, 99)), 1),
        largest_ms=round(max(taken), 1),
        missed=plan.devices * plan.versions - len(taken),
        device_cpu_ms=round(1e3 * sum(each.cpu_s for each in told) / max(1, len(taken)), 2),
        server_cpu_ms=round(1e3 * server_s / max(1, len(taken)), 2),
    )


async def _start(
    plan: Round, directory: Path, port: int, names: Sequence[str], key: Ed25519PrivateKey
) -> Process:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 26,
        cwd=TESTS,
    )
    assert child.stdin is not None
    told = {
        "kind": plan.kind,
        "identities": str(directory / "pki" / "identities"),
        "state": str(directory / "devices"),
        "port": port,
        "names": list(names),
        "public_key": key.public_key().public_bytes_raw().hex(),
    }
    child.stdin.write(json.dumps(told).encode() + b"\n")
    await child.stdin.drain()
    return child


async def _line(child: Process) -> bytes:
    assert child.stdout is not None
    line = await child.stdout.readline()
    assert line, "a process with devices ended early"
    return line


async def _stop(child: Process) -> Told:
    """Ends a process, which says what became active when."""
    assert child.stdin is not None
    child.stdin.close()
    told = Told(**json.loads(await _line(child)))
    await child.wait()
    return told
