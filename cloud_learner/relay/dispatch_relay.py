"""Tasks of the learner for the devices of a site: `shoal.v1.Dispatcher`, passed on."""

from __future__ import annotations

import grpc.aio

from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.forwarder import Forwarder
from cloud_learner.relay.relay_server import refuse_operators
from cloud_learner.serving.grpc_server import Context
from shoal.v1 import dispatcher_pb2 as pb
from shoal.v1 import dispatcher_pb2_grpc as rpc


class DispatchRelay(rpc.DispatcherServicer):
    """Asks upstream for tasks in the names of devices; holds none itself.

    GrpcServer(host, port, identity, [relay_server, DispatchRelay(pool, fleet="reef")])
    """

    def __init__(self, pool: ChannelPool, *, fleet: str) -> None:
        """Asks nothing yet.

        Args:
            pool: Connections upstream.
            fleet: The fleet served.
        """
        self._upstream = Forwarder(pool, fleet=fleet, what="tasks")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_DispatcherServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """There are none."""

    async def NextTask(  # noqa: N802 - the name in the proto
        self, request: pb.NextTaskRequest, context: Context
    ) -> pb.NextTaskResponse:
        """Settles what the device leaves, and hands it the next."""
        return await self._upstream.ask(
            request, lambda channel: rpc.DispatcherStub(channel).NextTask, context
        )

    async def ListTasks(  # noqa: N802 - the name in the proto
        self,
        request: pb.ListTasksRequest,  # noqa: ARG002 - whatever it asks for
        context: Context,
    ) -> pb.ListTasksResponse:
        """Refuses: operators ask the learner."""
        await refuse_operators(context)
