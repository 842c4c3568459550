"""Gradients of a site's devices, and the weights that they are of: passed on to the learner."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.forwarder import Forwarder, Streaming
from cloud_learner.serving.grpc_server import Context
from shoal.v1 import parameter_server_pb2, update_pb2
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub


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
        self._upstream = Forwarder(pool, fleet=fleet, what="gradients")

    async def weights(
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[parameter_server_pb2.Part]:
        """The learner's weights, in parts as they come; none when the device holds them."""
        async for part in self._upstream.parts(request, _weights_of, context):
            yield part

    async def push(
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        """What the learner says of a gradient."""
        return await self._upstream.ask(
            request, lambda channel: ParameterServerStub(channel).PushUpdate, context
        )


def _weights_of(channel: grpc.aio.Channel) -> Streaming[parameter_server_pb2.Part]:
    method: Streaming[parameter_server_pb2.Part] = ParameterServerStub(channel).GetWeights
    return method
