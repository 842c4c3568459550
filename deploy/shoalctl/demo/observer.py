"""Reads the fleet's views for the demo, and goes on when the learner is away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio

from shoal.identity import Identity
from shoal.v1 import fleet_pb2, fleet_pb2_grpc
from shoalctl.demo.workspace import FLEET

CALL_TIMEOUT_S = 3.0
RETRY_S = 0.1
INTERVAL_MS = 50
T = TypeVar("T")
_FAST_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class Observer:
    """An operator's view of one fleet.

    async with Observer("127.0.0.1:8443", identity_dir) as observer:
        async for training in observer.watch_training(): ...
    """

    def __init__(self, server: str, identity: Path) -> None:
        """Connects to `server` as the operator whose identity directory is given."""
        pems = Identity.load(identity).read_pems()
        self._channel = grpc.aio.secure_channel(
            server,
            grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert),
            options=_FAST_RECONNECT,
        )
        self._fleet = fleet_pb2_grpc.FleetStub(self._channel)

    async def __aenter__(self) -> Self:
        """Connects at the first call."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the channel."""
        await self._channel.close(None)

    async def watch_training(self) -> AsyncIterator[fleet_pb2.Training]:
        """The state of training as it changes; waits while the learner is away."""
        request = fleet_pb2.WatchTrainingRequest(fleet=FLEET, interval_ms=INTERVAL_MS)
        while True:
            try:
                async for training in self._fleet.WatchTraining(request):
                    yield training
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(RETRY_S)

    async def training(self) -> fleet_pb2.Training | None:
        """The state of training now, or None if the learner is away."""

        async def first() -> fleet_pb2.Training:
            async for training in self._fleet.WatchTraining(
                fleet_pb2.WatchTrainingRequest(fleet=FLEET), timeout=CALL_TIMEOUT_S
            ):
                return training  # type: ignore[no-any-return]
            return fleet_pb2.Training()

        return await _or_none(first)

    async def devices(self) -> Sequence[fleet_pb2.Device] | None:
        """Every device of the fleet, or None if the learner is away."""
        response: fleet_pb2.ListDevicesResponse | None = await _or_none(
            lambda: self._fleet.ListDevices(
                fleet_pb2.ListDevicesRequest(fleet=FLEET), timeout=CALL_TIMEOUT_S
            )
        )
        return None if response is None else response.devices

    async def audit(self) -> fleet_pb2.Audit | None:
        """The audit of the whole fleet, or None if the learner is away."""
        response: fleet_pb2.AuditResponse | None = await _or_none(
            lambda: self._fleet.Audit(fleet_pb2.AuditRequest(fleet=FLEET), timeout=CALL_TIMEOUT_S)
        )
        return None if response is None else response.total

    async def policy_digests(self) -> dict[str, str]:
        """The digest of each version in the policy log, by version; empty without a learner."""
        response: fleet_pb2.ListPoliciesResponse | None = await _or_none(
            lambda: self._fleet.ListPolicies(
                fleet_pb2.ListPoliciesRequest(fleet=FLEET), timeout=CALL_TIMEOUT_S
            )
        )
        policies = () if response is None else response.policies
        return {str(policy.version): policy.digest.hex() for policy in policies}


async def _or_none(call: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await call()
    except grpc.aio.AioRpcError:
        return None
