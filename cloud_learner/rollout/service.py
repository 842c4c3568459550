"""Rollouts over gRPC, to operators and to devices: `shoal.v1.Rollouts`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, NoReturn

import grpc
import grpc.aio

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.fleet.service import require_operator, require_operator_name
from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.rollout.decide import Outcome, Report, decide
from cloud_learner.rollout.directive import bundle_pb
from cloud_learner.rollout.messages import COMMANDS, PROGRESS, plan_of, rollout_pb
from cloud_learner.rollout.plan import Kind
from cloud_learner.rollout.rollout import Progress, Rollout, State
from cloud_learner.rollout.rollouts import Rollouts
from cloud_learner.serving.grpc_server import (
    Context,
    peer_name,
    refuse,
    require_device,
    require_fleet,
)
from shoal.errors import BundleRefused, ConfigError, PolicyLogError, RolloutError
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import rollout_pb2 as pb
from shoal.v1 import rollout_pb2_grpc as rpc

MAX_REASON: Final = 300
MAX_OPERATOR_WATCHES: Final = 64
MAX_WATCHES_PER_DEVICE: Final = 16
"""A device needs one; a reconnecting one may leave dead ones behind until they time out."""
_SAID: Final = (Progress.STARTED, Progress.SUCCEEDED, Progress.FAILED, Progress.LEFT)


class RolloutService(rpc.RolloutsServicer):
    """Serves `shoal.v1.Rollouts`. Used from the event loop.

    service = RolloutService(rollouts, bundles, policy_log, fleet="reef", counters=counters)
    """

    def __init__(
        self,
        rollouts: Rollouts,
        bundles: BundleStore,
        policy_log: PolicyLog,
        *,
        fleet: str,
        counters: Counter[str] | None = None,
    ) -> None:
        """Joins what it serves.

        Args:
            rollouts: All of them.
            bundles: What agents are rolled out from.
            policy_log: Of the policies.
            fleet: The fleet served.
            counters: Where outcomes that were refused are counted.
        """
        self._rollouts = rollouts
        self._bundles = bundles
        self._log = policy_log
        self._fleet = fleet
        self._counters: Counter[str] = Counter() if counters is None else counters
        self._stopping = asyncio.Event()
        self._watches = 0
        self._device_watches: Counter[str] = Counter()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_RolloutsServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Ends every watch with UNAVAILABLE, so that devices connect again later."""
        self._stopping.set()

    # -------------------------------------------------------------------------------- operators

    async def StartRollout(  # noqa: N802 - the name in the proto
        self, request: pb.StartRolloutRequest, context: Context
    ) -> pb.Rollout:
        """Starts one, or says what it would begin with."""
        await require_operator(context, request.fleet, self._fleet)
        try:
            plan = plan_of(request.plan)
            if request.dry_run:
                return self._pb(self._first_wave(self._rollouts.draft(plan)))
            return self._pb(await self._rollouts.start(plan))
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except (RolloutError, PolicyLogError) as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    async def ListRollouts(  # noqa: N802 - the name in the proto
        self, request: pb.ListRolloutsRequest, context: Context
    ) -> pb.ListRolloutsResponse:
        """Every one."""
        await require_operator(context, request.fleet, self._fleet)
        rollouts = [self._pb(each, members=False) for each in self._rollouts.all]
        return pb.ListRolloutsResponse(rollouts=rollouts)

    async def WatchRollout(  # noqa: N802 - the name in the proto
        self, request: pb.WatchRolloutRequest, context: Context
    ) -> AsyncIterator[pb.Rollout]:
        """One, and again when it changed; its end ends the stream."""
        await require_operator(context, request.fleet, self._fleet)
        if self._watches >= MAX_OPERATOR_WATCHES:
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_OPERATOR_WATCHES} rollouts are watched already: close one",
            )
        found = self._rollouts.find(request.rollout_id)
        if found is None:
            which = f"rollout {request.rollout_id}" if request.rollout_id else "rollout"
            await refuse(
                context, grpc.StatusCode.NOT_FOUND, f"there is no {which}: see `shoal rollout ls`"
            )
        self._watches += 1
        try:
            sent: Rollout | None = None
            while not self._stopping.is_set():
                revision = self._rollouts.revision
                rollout = self._rollouts.find(found.rollout_id) or found
                if sent is None or replace(rollout, ran_s=0.0) != replace(sent, ran_s=0.0):
                    yield self._pb(rollout)
                    sent = rollout
                if rollout.state.ended:
                    return
                await self._until_news(revision)
        finally:
            self._watches -= 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")

    async def CommandRollout(  # noqa: N802 - the name in the proto
        self, request: pb.CommandRolloutRequest, context: Context
    ) -> pb.Rollout:
        """Pauses, resumes or aborts one."""
        await require_operator(context, request.fleet, self._fleet)
        state = COMMANDS.get(request.command)
        if state is None:
            problem = f"command {request.command} is not known here: update the learner"
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        try:
            reason = request.reason[:MAX_REASON] or f"asked for by {peer_name(context)}"
            return self._pb(await self._rollouts.enter(request.rollout_id, state, reason))
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except RolloutError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    async def ListBundles(  # noqa: N802 - the name in the proto
        self, request: pb.ListBundlesRequest, context: Context
    ) -> pb.ListBundlesResponse:
        """Every bundle that devices can fetch."""
        await require_operator(context, request.fleet, self._fleet)
        return pb.ListBundlesResponse(bundles=[bundle_pb(each) for each in self._bundles.all])

    async def AddBundle(  # noqa: N802 - the name in the proto
        self, request_iterator: AsyncIterator[pb.AddBundlePart], context: Context
    ) -> pb.AgentBundle:
        """Takes a bundle in, once every byte of it was checked."""
        await require_operator_name(context)
        try:
            with self._bundles.receiving() as incoming:
                async for each in request_iterator:
                    if not incoming.size:
                        await require_fleet(context, each.fleet, self._fleet)
                        await asyncio.to_thread(incoming.expect, each.part.total_bytes)
                    if each.part.offset != incoming.size:
                        problem = f"a part at {each.part.offset}, {incoming.size} bytes are here"
                        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
                    await asyncio.to_thread(incoming.write, each.part.data)
                return bundle_pb(await asyncio.to_thread(self._bundles.keep, incoming))
        except (ConfigError, BundleRefused) as error:
            self._counters["bundles_refused"] += isinstance(error, BundleRefused)
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except RolloutError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    # ---------------------------------------------------------------------------------- devices

    async def GetBundle(  # noqa: N802 - the name in the proto
        self, request: pb.GetBundleRequest, context: Context
    ) -> AsyncIterator[pb.BundlePart]:
        """Sends the bytes of a bundle, from where the device is."""
        name = peer_name(context)
        await self._require_device(name, request.fleet, context)
        bundle = self._bundles.find(request.digest)
        if bundle is None or request.offset > bundle.bundle_bytes:
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"there is no bundle {request.digest.hex()[:12]} of over {request.offset} bytes",
            )
        pieces, offset = self._bundles.read(bundle, request.offset), request.offset
        try:
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield pb.BundlePart(total_bytes=bundle.bundle_bytes, offset=offset, data=piece)
                offset += len(piece)
        except RolloutError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))

    async def WatchDirective(  # noqa: N802 - the name in the proto
        self, request: pb.WatchDirectiveRequest, context: Context
    ) -> AsyncIterator[pb.Directive]:
        """What the device is to run, and again when that changed."""
        device_id = await self._require_device(request.device_id, request.fleet, context)
        if self._device_watches[device_id] >= MAX_WATCHES_PER_DEVICE:
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{device_id} has {MAX_WATCHES_PER_DEVICE} watches open: close them, or wait until "
                "their connections time out",
            )
        self._device_watches[device_id] += 1
        try:
            sent: pb.Directive | None = None
            while not self._stopping.is_set():
                revision = self._rollouts.revision
                directive = self._rollouts.directives.of(device_id, digest_of=self._digest_of)
                if directive != sent:
                    yield directive
                    sent = directive
                await self._until_news(revision)
        finally:
            self._device_watches[device_id] -= 1
            self._device_watches += Counter()  # forgets those at 0
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping: come back")

    async def ReportOutcome(  # noqa: N802 - the name in the proto
        self, request: pb.ReportOutcomeRequest, context: Context
    ) -> pb.ReportOutcomeResponse:
        """Takes what became of it on the device; durable when answered."""
        device_id = await self._require_device(request.device_id, request.fleet, context)
        rollout = self._rollouts.find(request.rollout_id) if request.rollout_id else None
        progress = PROGRESS.get(request.progress)
        if rollout is None or device_id not in rollout.members:
            await self._refuse_outcome(
                context, f"{device_id} is in no wave of a rollout {request.rollout_id}"
            )
        if progress not in _SAID or len(request.run_id) != RUN_ID_BYTES:
            await self._refuse_outcome(
                context, f"progress {request.progress}, run_id of {len(request.run_id)} bytes"
            )
        if request.digest not in self._digests(rollout, device_id):
            await self._refuse_outcome(
                context,
                f"{device_id} tells of {request.digest.hex()[:12] or 'nothing'}, which is not "
                f"what rollout {rollout.rollout_id} is about",
            )
        if progress is Progress.SUCCEEDED and rollout.plan.kind is Kind.POLICY:
            least = 1 if request.episodes == 0 else rollout.plan.episodes
            if 0 < request.episodes < least:
                await self._refuse_outcome(
                    context,
                    f"{device_id} acted {request.episodes} of {least} episodes: no success yet",
                )
        outcome = Outcome(progress, request.reason[:MAX_REASON], request.episodes, request.run_id)
        try:
            await self._rollouts.hear(rollout.rollout_id, device_id, outcome)
        except (RolloutError, PolicyLogError) as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.ReportOutcomeResponse()

    # ------------------------------------------------------------------------------------ parts

    async def _require_device(self, device_id: str, fleet: str, context: Context) -> str:
        return await require_device(context, device_id, fleet, self._fleet)

    async def _refuse_outcome(self, context: Context, problem: str) -> NoReturn:
        self._counters["outcomes_refused"] += 1
        await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, problem)

    async def _until_news(self, revision: int) -> None:
        """Returns when something changed, or the learner stops."""
        news = asyncio.ensure_future(self._rollouts.news(revision))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({news, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (news, stop):
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each

    def _first_wave(self, rollout: Rollout) -> Rollout:
        rollout = replace(rollout, state=State.ACTIVE)
        reports = {each: Report() for each in self._rollouts.devices_of(rollout.plan)}
        for action in decide(rollout, reports, 0.0):
            rollout = rollout.after(action, 0.0)
        return replace(rollout, state=State.STARTING)

    def _digests(self, rollout: Rollout, device_id: str) -> tuple[bytes, ...]:
        """What a device may say that it runs."""
        if rollout.plan.kind is Kind.AGENT:
            bundle = self._rollouts.directives.bundle_of(rollout, device_id)
            return () if bundle is None else (bundle.digest,)
        for info in self._log.list():
            if info.manifest.version == rollout.versions.candidate:
                return info.manifest.digest, *info.manifest.twin_digests
        return ()

    def _digest_of(self, version: int) -> bytes:
        found = (info.manifest for info in self._log.list() if info.manifest.version == version)
        return next((manifest.digest for manifest in found), b"")

    def _pb(self, rollout: Rollout, *, members: bool = True) -> pb.Rollout:
        devices = len(rollout.members)
        if not rollout.state.ended:
            devices = len({*self._rollouts.devices_of(rollout.plan), *rollout.members})
        return rollout_pb(rollout, devices=devices, members=members)
