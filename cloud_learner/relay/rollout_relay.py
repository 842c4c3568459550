"""Rollouts of the learner for the devices of a site: `shoal.v1.Rollouts`, passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from cloud_learner.relay.bundle_relay import BundleRelay
from cloud_learner.relay.candidates import Candidates
from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.forwarder import Forwarder, Streaming
from cloud_learner.relay.relay_server import refuse_operators
from cloud_learner.serving.grpc_server import Context, peer_name, require_device
from shoal.errors import ShoalError
from shoal.v1 import rollout_pb2 as pb
from shoal.v1 import rollout_pb2_grpc as rpc


class RolloutRelay(rpc.RolloutsServicer):
    """Serves what devices ask of rollouts; bundles come upstream once and stay on disk.

    service = RolloutRelay(pool, candidates, bundles, fleet="reef")
    await bundles.serve()           # fetches those that are asked for, until cancelled
    """

    def __init__(
        self, pool: ChannelPool, candidates: Candidates, bundles: BundleRelay, *, fleet: str
    ) -> None:
        """Asks nothing yet.

        Args:
            pool: Connections upstream.
            candidates: Holds the policies that are rolled out.
            bundles: Holds the bundles that are.
            fleet: The fleet served.
        """
        self._candidates = candidates
        self._bundles = bundles
        self._fleet = fleet
        self._upstream = Forwarder(pool, fleet=fleet, what="rollouts")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_RolloutsServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Ends every watch with UNAVAILABLE, so that devices connect again later."""
        self._upstream.stop()

    async def WatchDirective(  # noqa: N802 - the name in the proto
        self, request: pb.WatchDirectiveRequest, context: Context
    ) -> AsyncIterator[pb.Directive]:
        """What the device is to run; a policy among that is here before it is told."""
        async for directive in self._upstream.stream(request, _directives_of, context):
            policy = directive.policy if directive.HasField("policy") else None
            try:
                await self._candidates.assign(request.device_id, policy)
            except (grpc.aio.AioRpcError, ShoalError) as error:
                await self._upstream.fail(error, context)
            yield directive

    async def ReportOutcome(  # noqa: N802 - the name in the proto
        self, request: pb.ReportOutcomeRequest, context: Context
    ) -> pb.ReportOutcomeResponse:
        """Tells the learner; durable there when answered."""
        return await self._upstream.ask(
            request, lambda channel: rpc.RolloutsStub(channel).ReportOutcome, context
        )

    async def GetBundle(  # noqa: N802 - the name in the proto
        self, request: pb.GetBundleRequest, context: Context
    ) -> AsyncIterator[pb.BundlePart]:
        """Sends the bytes of a bundle from this disk, from where the device is."""
        await require_device(context, peer_name(context), request.fleet, self._fleet)
        try:
            bundle = await self._bundles.get(request.digest)
            if request.offset > bundle.bundle_bytes:
                problem = f"the bundle has {bundle.bundle_bytes} bytes, not over {request.offset}"
                await context.abort(grpc.StatusCode.NOT_FOUND, problem)
            pieces, offset = self._bundles.read(bundle, request.offset), request.offset
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield pb.BundlePart(total_bytes=bundle.bundle_bytes, offset=offset, data=piece)
                offset += len(piece)
        except (grpc.aio.AioRpcError, ShoalError) as error:
            await self._upstream.fail(error, context)

    # -------------------------------------------------------------------------------- operators

    async def StartRollout(  # noqa: N802 - the name in the proto
        self,
        request: pb.StartRolloutRequest,  # noqa: ARG002 - whatever it asks for
        context: Context,
    ) -> pb.Rollout:
        """Refuses: operators ask the learner."""
        await refuse_operators(context)

    async def ListRollouts(  # noqa: N802 - the name in the proto
        self,
        request: pb.ListRolloutsRequest,  # noqa: ARG002 - whatever it asks for
        context: Context,
    ) -> pb.ListRolloutsResponse:
        """Refuses: operators ask the learner."""
        await refuse_operators(context)

    async def CommandRollout(  # noqa: N802 - the name in the proto
        self,
        request: pb.CommandRolloutRequest,  # noqa: ARG002 - whatever it asks for
        context: Context,
    ) -> pb.Rollout:
        """Refuses: operators ask the learner."""
        await refuse_operators(context)

    async def ListBundles(  # noqa: N802 - the name in the proto
        self,
        request: pb.ListBundlesRequest,  # noqa: ARG002 - whatever it asks for
        context: Context,
    ) -> pb.ListBundlesResponse:
        """Refuses: operators ask the learner."""
        await refuse_operators(context)


def _directives_of(channel: grpc.aio.Channel) -> Streaming[pb.Directive]:
    method: Streaming[pb.Directive] = rpc.RolloutsStub(channel).WatchDirective
    return method
