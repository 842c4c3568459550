"""The bundles of agents for a site: fetched upstream once, proven, kept on disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Final

import grpc
import grpc.aio

from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.upstream import BACKOFF_BASE_S
from cloud_learner.rollout.bundles import BundleStore, Incoming, StoredBundle
from shoal.bundle_archive import MAX_ARCHIVE_BYTES
from shoal.errors import ShoalError, WireError
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub

BUNDLES_KEPT: Final = 4
"""On a relay's disk; of more, the oldest go."""
MAX_WANTED: Final = 8
"""Bundles that may be waited for at once, one being fetched; a further one is refused."""
TRIES: Final = 5
"""After as many breaks in a row without a further byte a fetch is given up."""
BACKOFF_CAP_S: Final = 5.0
_log = get_logger("bundle_relay")


class BundleRelay:
    """Fetches each bundle once, however many devices want it. Used from the event loop.

    bundles = BundleRelay(pool, store, fleet="reef")
    await run_services({"bundles": bundles.serve})
    bundle = await bundles.get(digest)
    """

    def __init__(
        self,
        pool: ChannelPool,
        store: BundleStore,
        *,
        fleet: str,
        rng: random.Random | None = None,
    ) -> None:
        """Fetches nothing yet.

        Args:
            pool: Connections upstream.
            store: Keeps and proves them.
            fleet: The fleet served.
            rng: Of the backoff's jitter.
        """
        self.bytes_down = 0
        self._pool = pool
        self._store = store
        self._fleet = fleet
        self._rng = rng or random.Random()
        self._wanted: dict[bytes, asyncio.Future[StoredBundle]] = {}  # in order
        self._wake = asyncio.Event()

    async def get(self, digest: bytes) -> StoredBundle:
        """A bundle by the digest of its manifest; waits while it is fetched.

        Raises:
            grpc.aio.AioRpcError: Upstream does not give it.
            ShoalError: It is not proven, too many are waited for, or the disk refuses.
        """
        found = self._store.find(digest)
        if found is not None:
            return found
        waiting = self._wanted.get(digest)
        if waiting is None:
            if len(self._wanted) >= MAX_WANTED:
                raise ShoalError(f"{MAX_WANTED} other bundles are being fetched: try again later")
            waiting = self._wanted[digest] = asyncio.get_running_loop().create_future()
            self._wake.set()
        return await asyncio.shield(waiting)  # whoever waits may leave; the fetch goes on

    def read(self, bundle: StoredBundle, offset: int) -> Iterator[bytes]:
        """The bytes of a bundle from an offset on, in pieces. For a thread.

        Raises:
            RolloutError: It can't be read.
        """
        return self._store.read(bundle, offset)

    async def serve(self) -> None:
        """Fetches what is wanted, one after the other; ends only by being cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted:
                digest = next(iter(self._wanted))
                try:
                    bundle = await self._fetch(digest)
                except (grpc.aio.AioRpcError, ShoalError) as error:
                    _log.warning("bundle_not_fetched", digest=digest, problem=str(error))
                    waiting = self._wanted.pop(digest)
                    waiting.set_exception(error)
                    waiting.exception()  # retrieved, even if nobody waits any more
                else:
                    self._wanted.pop(digest).set_result(bundle)

    async def _fetch(self, digest: bytes) -> StoredBundle:
        attempt = 0
        with self._store.receiving() as incoming:
            while True:
                before = incoming.size
                try:
                    total = await self._receive(digest, incoming)
                    break
                except grpc.aio.AioRpcError as error:
                    attempt = 0 if incoming.size > before else attempt + 1
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt >= TRIES:
                        raise
                pause = backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
                await asyncio.sleep(pause)
            if incoming.size != total:
                raise WireError(f"a bundle ended after {incoming.size} of {total} bytes")
            bundle = await asyncio.to_thread(self._store.keep, incoming)
        if bundle.digest != digest:
            raise WireError(f"upstream sent bundle {bundle.version}, which was not asked for")
        return bundle

    async def _receive(self, digest: bytes, incoming: Incoming) -> int:
        """Takes in what is missing; how many bytes there are in all."""
        total = 0
        request = pb.GetBundleRequest(fleet=self._fleet, digest=digest, offset=incoming.size)
        async with self._pool.channel() as channel:
            call = RolloutsStub(channel).GetBundle(request)
            try:
                async for part in call:
                    first, total = not total, part.total_bytes
                    if total > MAX_ARCHIVE_BYTES or part.offset != incoming.size:
                        raise WireError(
                            f"a part of a bundle of {total} bytes at {part.offset}, "
                            f"{incoming.size} are here"
                        )
                    if first:
                        await asyncio.to_thread(incoming.expect, total)
                    await asyncio.to_thread(incoming.write, part.data)
                    self.bytes_down += len(part.data)
            finally:
                call.cancel()
        return total or incoming.size
