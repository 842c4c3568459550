"""What a parameter server needs of whoever takes gradients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from cloud_learner.serving.grpc_server import Context
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import update_pb2


class TakesUpdates(Protocol):
    """The learner applies gradients; a relay passes them on. Both check who calls."""

    def weights(
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        """The fp32 weights as they are now, in parts; none when the device holds them."""

    async def push(
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        """What became of a gradient."""
