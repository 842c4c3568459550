"""A parameter server with its log, and devices that watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_learner.downlink.parameter_server import (
    ParameterServer,
)
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from shoal.identity import Identity
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    PART_BYTES,
    Assembler,
    Golden,
    PayloadPart,
)
from shoal.tensors import Array
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 60.0
GRAPH = b"a weightless graph"
SMALL, LARGE = 64, 12 * PART_BYTES  # bytes of weights: one part, and far more than a window
PATIENCE_S = 0.05


# A transport that takes little on credit, so that a device that does not read blocks its sender.
NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))


@dataclass(frozen=True)
class PolicyOfSize:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.996


class Cloud:
    """A policy log and its parameter server behind real TLS, and devices to connect to it."""

    def __init__(
        self,
        pki: FleetPki,
        log: PolicyLog,
        server: ParameterServer,
        port: int,
        ahead: list[int],
    ) -> None:
        self.pki, self.log, self.server, self.port = pki, log, server, port
        self.ahead = ahead
        self.stack = AsyncExitStack()

    def step(self, size: int = LARGE) -> Published:
        """Publishes a policy that differs little from the one before."""
        return self.publish(size, np.random.default_rng(0).integers(-60, 60, size).astype(np.int8))

    def publish(self, size: int = SMALL, weight: NDArray[np.int8] | None = None) -> Published:
        golden = Golden(
            observations=np.zeros((1, 4), np.float32),
            noise=np.zeros((1, 2), np.float32),
            actions=np.array([1]),
            log_probs=np.array([-0.5], np.float32),
        )
        if weight is None:
            weight = np.full(size, self.log.highest_version % 100, np.int8)
        else:
            weight[: self.log.highest_version] += 1
        policy = PolicyOfSize({"weight.0": weight, "weight.0.scale": np.ones(4)}, golden)
        published = self.log.publish(policy, graph=GRAPH, updates=16, spec_fingerprint=bytes(32))
        self.server.announce(published)
        return published

    async def device(self, name: str, *, role: Role = Role.DEVICE) -> Device:
        pems = Identity(self.pki.issue(name, role), name, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options = (*NARROW, ("grpc.use_local_subchannel_pool", 1))
        channel = grpc.aio.secure_channel(f"localhost:{self.port}", keys, options)
        await self.stack.enter_async_context(channel)
        return Device(name, rpc.ParameterServerStub(channel))


class Device:
    """The receiving end of one connection."""

    def __init__(self, name: str, stub: rpc.ParameterServerStub) -> None:
        self.name, self.stub = name, stub

    def watch(
        self,
        have: int = 0,
        *,
        digest: bytes = b"",
        fleet: str = "reef",
        name: str = "",
        deltas: bool = False,
        compressed: bool = False,
        partial: tuple[bytes, int] = (b"", 0),
    ) -> Watch:
        request = pb.WatchRequest(
            fleet=fleet,
            device_id=name or self.name,
            have_version=have,
            have_digest=digest,
            accepts_delta=deltas,
            partial_digest=partial[0],
            partial_bytes=partial[1],
            accepts_compressed_delta=compressed,
        )
        return Watch(self.stub.Watch(request, timeout=DEADLINE_S))

    async def follow(self, *requests: pb.FollowRequest) -> Watch:
        """A stream to report on, begun by these requests."""
        call = self.stub.Follow(timeout=DEADLINE_S)
        for request in requests:
            await call.write(request)
        return Watch(call)

    async def report(
        self, version: int, digest: bytes, *, name: str = "", handled: int = 0
    ) -> None:
        """Says what acts."""
        request = pb.ReportActiveRequest(
            fleet="reef",
            device_id=name or self.name,
            run_id=bytes(16),
            version=version,
            digest=digest,
            handled_version=handled,
        )
        await self.stub.ReportActive(request, timeout=DEADLINE_S)

    def graph(self, digest: bytes, *, fleet: str = "reef") -> Watch:
        request = pb.GetGraphRequest(fleet=fleet, digest=digest)
        return Watch(self.stub.GetGraph(request, timeout=DEADLINE_S))

    def policy(self, version: int, *, fleet: str = "reef") -> Watch:
        request = pb.GetPolicyRequest(fleet=fleet, version=version)
        return Watch(self.stub.GetPolicy(request, timeout=DEADLINE_S))


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    details: str


class Watch:
    """A stream of parts, put together."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - of either kind
        self.call = call
        self.version = 0
        self.kind = pb.PAYLOAD_KIND_UNSPECIFIED
        self.bytes = 0
        self.digest = b""
        self._assembler = Assembler(MAX_BUNDLE_BYTES)

    async def part(self) -> bytes | None:
        part = await self.call.read()
        assert isinstance(part, pb.Part), "the stream has ended"
        self.version, self.kind, self.digest = part.version, part.kind, part.digest
        self.bytes += len(part.data)
        return self._assembler.add(
            PayloadPart(part.total_bytes, part.offset, part.data, part.digest)
        )

    async def payload(self) -> bytes:
        while (payload := await self.part()) is None:
            pass
        return payload

    async def refusal(self) -> Refusal:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.payload()
        return Refusal(caught.value.code(), caught.value.details() or "")


Scenario = Callable[[Cloud], Coroutine[Any, Any, None]]


Play = Callable[[Scenario], None]


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for lies behind a connection
        await asyncio.sleep(0)
