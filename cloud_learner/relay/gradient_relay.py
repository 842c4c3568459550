"""Gradients of a site's devices, and the weights that they are of: passed on to the learner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc.aio

from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.forwarder import Forwarder
from cloud_learner.serving.grpc_server import Context, require_device
from shoal.v1 import parameter_server_pb2, update_pb2
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

Parts: TypeAlias = (
    "grpc.aio.UnaryStreamCall[update_pb2.GetWeightsRequest, parameter_server_pb2.Part]"
)


class GradientRelay:
    """`TakesUpdates` of a relay: it merges nothing and keeps nothing (decision 0039).

    RelayServer(policies, fleet="reef", gradients=GradientRelay(pool, fleet="reef"), ...)
    """

    def __init__(self, pool: ChannelPool, *, fleet: str) -> None:
        """Asks nothing yet.

        Args:
            pool: Connections upstream.
            fleet: The fleet served.
        """
        self._fleet = fleet
        self._upstream = Forwarder(pool, what="gradients")

    async def weights(
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[parameter_server_pb2.Part]:
        """The learner's weights, in parts as they come; none when the device holds them."""
        await require_device(context, request.device_id, request.fleet, self._fleet)

        def ask(channel: grpc.aio.Channel, timeout_s: float) -> Parts:
            call: Parts = ParameterServerStub(channel).GetWeights(request, timeout=timeout_s)
            return call

        async for part in self._upstream.parts(ask, context):
            yield part

    async def push(
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        """What the learner says of a gradient."""
        await require_device(context, request.device_id, request.fleet, self._fleet)
        return await self._upstream.ask(
            lambda channel, timeout_s: ParameterServerStub(channel).PushUpdate(
                request, timeout=timeout_s
            ),
            context,
        )
