"""Policies that are rolled out to some devices of a site, kept beside the newest one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from cloud_learner.downlink.policy_source import PolicyInfo
from cloud_learner.downlink.published import Published
from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.relay_store import RelayStore
from shoal.errors import WireError
from shoal.policy import MAX_BUNDLE_BYTES, MAX_GRAPH_BYTES, Assembler, PayloadPart
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

FETCH_DEADLINE_S: Final = 120.0
CANDIDATES_KEPT: Final = 2


class SitePolicies:
    """A `PolicySource` of two stores: what every device may have, and what some are asked to try.

    The newest is of the first one alone: only who is asked gets a candidate.
    """

    def __init__(self, policies: RelayStore, candidates: RelayStore) -> None:
        self._policies = policies
        self._candidates = candidates

    def newest(self) -> Published | None:
        """The newest that every device may have."""
        return self._policies.newest()

    def get(self, version: int) -> Published | None:
        """One version; None when it is not kept or is damaged."""
        return self._policies.get(version) or self._candidates.get(version)

    def graph(self, digest: bytes) -> bytes | None:
        """A graph by its sha256; None when no kept version uses it or it is damaged."""
        return self._policies.graph(digest) or self._candidates.graph(digest)

    def list(self) -> tuple[PolicyInfo, ...]:
        """The versions kept, newest first."""
        both = (*self._candidates.list(), *self._policies.list())
        by_version = {info.manifest.version: info for info in both}
        return tuple(by_version[version] for version in sorted(by_version, reverse=True))

    @property
    def highest_version(self) -> int:
        """The highest version ever accepted here; 0 for none."""
        return max(self._policies.highest_version, self._candidates.highest_version)


class Candidates:
    """Fetches what a device is asked to try, once for all of them, and has it offered to that one.

    candidates = Candidates(pool, site_policies, store, relay_server.assign, fleet="reef")
    await candidates.assign("pi-1", directive.policy)
    """

    def __init__(
        self,
        pool: ChannelPool,
        policies: SitePolicies,
        store: RelayStore,
        offer: Callable[[str, Published | None], object],
        *,
        fleet: str,
    ) -> None:
        """Fetches nothing yet.

        Args:
            pool: Connections upstream.
            policies: All that is here.
            store: Proves and keeps candidates.
            offer: Has a device offered a policy, or the newest again.
            fleet: The fleet served.
        """
        self._pool = pool
        self._policies = policies
        self._store = store
        self._offer = offer
        self._fleet = fleet
        self._fetching = asyncio.Lock()

    async def assign(self, device_id: str, policy: rollout_pb2.PolicyDirective | None) -> None:
        """Has a device get what it is asked to try; None: the newest, as the others.

        Raises:
            grpc.aio.AioRpcError: Upstream does not give it.
            ShoalError: It is not proven, or the disk refuses.
        """
        if policy is None:
            self._offer(device_id, None)
            return
        async with self._fetching:
            published = await asyncio.to_thread(self._policies.get, policy.version)
            if published is None:
                published = await self._fetch(policy.version)
        if published.version != policy.version or published.digest != policy.digest:
            raise WireError(f"policy {policy.version} is not the one that is rolled out")
        self._offer(device_id, published)

    async def _fetch(self, version: int) -> Published:
        loop = asyncio.get_running_loop()
        async with self._pool.channel() as channel:
            stub = ParameterServerStub(channel)

            def fetch_graph(digest: bytes) -> bytes:  # in the thread that proves the policy
                here = self._policies.graph(digest)
                if here is not None:
                    return here
                return asyncio.run_coroutine_threadsafe(self._graph(stub, digest), loop).result()

            request = pb.GetPolicyRequest(fleet=self._fleet, version=version)
            parts = stub.GetPolicy(request, timeout=FETCH_DEADLINE_S)
            data = await _whole(parts, MAX_BUNDLE_BYTES)
            return await asyncio.to_thread(self._store.accept, data, fetch_graph)

    async def _graph(self, stub: ParameterServerStub, digest: bytes) -> bytes:
        request = pb.GetGraphRequest(fleet=self._fleet, digest=digest)
        return await _whole(stub.GetGraph(request, timeout=FETCH_DEADLINE_S), MAX_GRAPH_BYTES)


async def _whole(parts: AsyncIterator[pb.Part], max_bytes: int) -> bytes:
    assembler = Assembler(max_bytes)
    async for part in parts:
        payload = assembler.add(PayloadPart(part.total_bytes, part.offset, part.data))
        if payload is not None:
            return payload
    raise WireError("upstream sent only a part of it")
