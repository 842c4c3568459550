"""Pushes policy versions to devices. Holds no training state: its source is the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import grpc
import grpc.aio

from cloud_learner.downlink.active_policies import Active, ActivePolicies
from cloud_learner.downlink.callers import require_device, require_member, require_reporter
from cloud_learner.downlink.follower import first_watch, hearing, problem_of
from cloud_learner.downlink.policy_source import PolicySource
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.refresh import Offer
from cloud_learner.downlink.updates import TakesUpdates
from cloud_learner.downlink.watcher import Held, Watcher
from cloud_learner.serving.grpc_server import Context, refuse, require_fleet
from cloud_learner.uplink.traffic import Traffic, TrafficMeter
from shoal.logs import get_logger
from shoal.policy import split
from shoal.policy_delta import DIGEST_BYTES, Base
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2

MAX_WATCHES_PER_DEVICE = 4
"""A device needs one. A reconnecting device may leave dead ones behind: the oldest is ended."""
MAX_STUCK_WATCHES_PER_DEVICE = 16
"""A watch whose connection is stuck ends only with it; with so many open, a new one is refused."""
REPORT_PATIENCE_S: Final = 5.0
"""How long a device may take to say what became of a refresh, before it is sent the next."""

_log = get_logger("parameter_server")


class ParameterServer(rpc.ParameterServerServicer):
    """Serves `shoal.v1.ParameterServer`.

    Watching is level-triggered: there is one newest policy and no queue, so a watcher that was
    away or slow gets the newest next and none in between, and costs no memory meanwhile.
    A device that can is sent what changed since the version it acts with, encoded once for all that
    have the same. Its next refresh waits until it has said what became of the last, but no longer
    than `REPORT_PATIENCE_S`, so that it still holds what the next one starts from.

    Everything here runs on the event loop of the server.

        server = ParameterServer(policy_log, fleet="reef")
        server.announce(await asyncio.to_thread(policy_log.publish, ...))
    """

    def __init__(
        self,
        policies: PolicySource,
        *,
        fleet: str,
        note_version: Callable[[int], object] = lambda _: None,
        active: ActivePolicies | None = None,
        patience_s: float = REPORT_PATIENCE_S,
        gradients: TakesUpdates | None = None,
    ) -> None:
        """Offers the newest version from the start.

        Args:
            policies: Where versions and graphs come from.
            fleet: The fleet served.
            note_version: Told what a device has when it is above everything published here.
            active: What devices act with; left out, nothing is known of any yet.
            patience_s: See `REPORT_PATIENCE_S`.
            gradients: Takes updates; None where the training's mode is another.

        Raises:
            PolicyLogError: The newest version cannot be read.
        """
        self._policies = policies
        self._fleet = fleet
        self._note_version = note_version
        newest = policies.newest()
        self._offer = None if newest is None else Offer(newest, policies)
        self._active = ActivePolicies() if active is None else active
        self._patience_s = patience_s
        self._gradients = gradients
        self._held: Held | None = None
        self._held_offers: dict[int, Offer] = {}
        self._watchers: dict[str, list[Watcher]] = {}  # by device, in order of arrival
        self._meter = TrafficMeter()
        self._stopping = False

    # ------------------------------------------------------------------------------ for the app

    def announce(self, published: Published) -> None:
        """Offers a version to every watcher; one that is not newer than the offer is ignored."""
        if self._offer is not None and published.version <= self._offer.version:
            return
        self._offer = Offer(published, self._policies)
        self._wake_all()

    def hold(self, held: Held | None) -> None:
        """Has devices get the versions of a rollout, until None has them follow the newest again.

        To be called again whenever what a device may have changes.
        """
        self._held = held
        versions = {} if held is None else held.versions
        self._held_offers = {
            version: self._held_offers.get(version) or Offer(published, self._policies)
            for version, published in versions.items()
        }
        self._wake_all()

    @property
    def offered_version(self) -> int:
        """The version being offered; 0 before the first."""
        return 0 if self._offer is None else self._offer.version

    @property
    def watchers(self) -> int:
        """How many watches are open."""
        return sum(map(len, self._watchers.values()))

    def active(self, device_id: str) -> Active | None:
        """What a device last said that it acts with; None: nothing, or it does not say."""
        return self._active.of(device_id)

    def traffic(self, device_id: str) -> Traffic:
        """What was sent to one device since the learner started."""
        return self._meter.of(device_id)

    def total_traffic(self) -> Traffic:
        """What was sent to all callers since the learner started."""
        return self._meter.total()

    # --------------------------------------------------------------------------- for the server

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_ParameterServerServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Ends every watch with UNAVAILABLE, so that devices connect again later."""
        self._stopping = True
        self._wake_all()

    # -------------------------------------------------------------------------------- the calls

    async def Watch(  # noqa: N802 - the name in the proto
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        """Sends the newest policy whenever it is newer than what the device has."""
        device_id = await self._begin(request, context)
        with self._watching(device_id) as watcher:
            async for part in self._push(request, device_id, watcher, context):
                yield part

    async def Follow(  # noqa: N802 - the name in the proto
        self, request_iterator: AsyncIterator[pb.FollowRequest], context: Context
    ) -> AsyncIterator[pb.Part]:
        """The same, to a device that says on the stream what it acts with."""
        requests = aiter(request_iterator)
        request = await first_watch(requests, context)
        device_id = await self._begin(request, context)

        def hear(report: pb.ReportActiveRequest) -> None:
            self._note(device_id, report)

        with self._watching(device_id) as watcher:
            async with hearing(requests, request, watcher, hear):
                async for part in self._push(request, device_id, watcher, context):
                    yield part

    async def GetGraph(  # noqa: N802 - the name in the proto
        self, request: pb.GetGraphRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        """Sends a graph by its sha256."""
        name = await require_member(context)
        await require_fleet(context, request.fleet, self._fleet)
        if len(request.digest) != DIGEST_BYTES:
            await refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"digest has {len(request.digest)} bytes: send the {DIGEST_BYTES} of a sha256",
            )
        graph = await asyncio.to_thread(self._policies.graph, request.digest)
        if graph is None:
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"no policy kept here uses graph {request.digest.hex()}: {self._what_is_newest()}; "
                "watch again and take the graph its manifest names",
            )
        for part in _parts(graph, version=0):
            yield part
            self._meter.count(name, len(part.data))

    async def GetPolicy(  # noqa: N802 - the name in the proto
        self, request: pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        """Sends one version, or the newest for version 0."""
        name = await require_member(context)
        await require_fleet(context, request.fleet, self._fleet)
        version = request.version or self.offered_version
        published = await asyncio.to_thread(self._policies.get, version)
        if published is None:
            kept = [info.manifest.version for info in self._policies.list()]
            there = f"kept are {kept[-1]} to {kept[0]}" if kept else "none is published yet"
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"policy version {version} is not here: {there}; ask for 0 to get the newest",
            )
        for part in _parts(published.bundle, version=published.version):
            yield part
            self._meter.count(name, len(part.data))
        self._meter.count_refresh(name, published.fp32_bytes)

    async def ReportActive(  # noqa: N802 - the name in the proto
        self, request: pb.ReportActiveRequest, context: Context
    ) -> pb.ReportActiveResponse:
        """Notes what a device acts with now; a relay tells it for those behind it."""
        device_id = await require_reporter(request, context)
        await require_fleet(context, request.fleet, self._fleet)
        if (problem := problem_of(request)) is not None:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        self._note(device_id, request)
        return pb.ReportActiveResponse()

    async def GetWeights(  # noqa: N802 - the name in the proto
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        """Sends the fp32 weights to a device that computes gradients."""
        async for part in (await self._require_gradients(context)).weights(request, context):
            yield part
            self._meter.count_fp32(request.device_id, len(part.data))

    async def PushUpdate(  # noqa: N802 - the name in the proto
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        """Takes a gradient."""
        return await (await self._require_gradients(context)).push(request, context)

    # --------------------------------------------------------------------------------- the rules

    async def _begin(self, request: pb.WatchRequest, context: Context) -> str:
        """Ends a call that may not watch; else gives its device."""
        device_id = await require_device(request, context)
        await require_fleet(context, request.fleet, self._fleet)
        if len(self._watchers.get(device_id, ())) >= MAX_STUCK_WATCHES_PER_DEVICE:
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{device_id} has {MAX_STUCK_WATCHES_PER_DEVICE} watches open: close them, or "
                "wait until their connections time out",
            )
        self._report_divergence(request)
        if request.accepts_delta and len(request.have_digest) in (0, DIGEST_BYTES):
            self._active.note(device_id, Base(request.have_version, request.have_digest))
        return device_id

    async def _push(
        self, request: pb.WatchRequest, device_id: str, watcher: Watcher, context: Context
    ) -> AsyncIterator[pb.Part]:
        """What a device is sent, for as long as it watches."""
        have = request.have_version
        partial = (request.partial_digest, request.partial_bytes)
        while True:
            watcher.wake.clear()
            if self._stopping:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the parameter server is stopping: come back"
                )
            if watcher.ended:
                await refuse(context, watcher.code, watcher.ended)
            offer = self._offer_to(device_id)
            if offer is None or offer.version <= have:
                await watcher.wake.wait()
                continue
            if watcher.answer_due_s is not None:
                await watcher.answered(watcher.answer_due_s)
                continue
            active = self._active.of(device_id) if request.accepts_delta else None
            refresh = await offer.from_base(
                None if active is None else active.base,
                compressed=request.accepts_compressed_delta,
            )
            watcher.sent_version = refresh.version if request.accepts_delta else 0
            # Sending waits for the transport, so a slow device holds back only itself.
            for part in refresh.rest(*partial):
                yield part
                self._meter.count(device_id, len(part.data))
            self._meter.count_refresh(device_id, refresh.fp32_bytes)
            have, partial = refresh.version, (b"", 0)
            if watcher.handled_version < watcher.sent_version:
                watcher.answer_due_s = asyncio.get_running_loop().time() + self._patience_s

    def _note(self, device_id: str, report: pb.ReportActiveRequest) -> None:
        """Notes what a device acts with, and that it has handled what it was sent."""
        self._active.note(device_id, Base(report.version, report.digest), report.run_id)
        handled = max(report.version, report.handled_version)
        for watcher in self._watchers.get(device_id, ()):
            watcher.handled(handled)

    def _offer_to(self, device_id: str) -> Offer | None:
        if self._held is None:
            return self._offer
        return self._held_offers.get(self._held.version_of(device_id))

    async def _require_gradients(self, context: Context) -> TakesUpdates:
        if self._gradients is None:
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                'this learner takes no gradients: set training.mode = "gradients" there, or mode = '
                '"trajectories" on the device',
            )
        return self._gradients

    def _report_divergence(self, request: pb.WatchRequest) -> None:
        """Says so when a device holds what this log never published."""
        offer = self._offer
        have = request.have_version
        newest = self._policies.highest_version
        ahead = have > newest
        differs = (
            offer is not None and have == offer.version and request.have_digest != offer.digest
        )
        if ahead or differs:
            _log.warning(
                "device_diverged",
                device_id=request.device_id,
                policy_version=have,
                newest_version=newest,
                problem="the device has a version this log never published: was the learner's "
                "state_dir lost or replaced? The device accepts only versions above its own: see "
                "policies_after_version",
            )
        if ahead:
            self._note_version(have)

    def _what_is_newest(self) -> str:
        infos = self._policies.list()
        if not infos:
            return "no policy is published yet"
        manifest = infos[0].manifest
        return f"the newest policy, version {manifest.version}, uses {manifest.graph_digest.hex()}"

    def _wake_all(self) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake.set()

    @contextlib.contextmanager
    def _watching(self, device_id: str) -> Iterator[Watcher]:
        mine = self._watchers.setdefault(device_id, [])
        for old in mine[: max(0, len(mine) + 1 - MAX_WATCHES_PER_DEVICE)]:
            old.end(f"{device_id} has opened {MAX_WATCHES_PER_DEVICE} newer watches")
        watcher = Watcher()
        mine.append(watcher)
        try:
            yield watcher
        finally:
            mine.remove(watcher)
            if not mine:
                del self._watchers[device_id]


def _parts(data: bytes, *, version: int) -> Iterator[pb.Part]:
    for part in split(data):
        yield pb.Part(
            version=version, total_bytes=part.total_bytes, offset=part.offset, data=part.data
        )
