"""Who calls a parameter server, by certificate, and for whom they may speak."""

from __future__ import annotations

from typing import Final

import grpc

from cloud_learner.serving.grpc_server import Context, peer_is_relay, peer_name, refuse
from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoal.v1 import parameter_server_pb2 as pb

OPERATORS: Final = frozenset({"operator", "learner"})
"""Who may read policies besides devices."""


async def require_member(context: Context, *, operators: frozenset[str] = OPERATORS) -> str:
    """Ends the call unless it is a device's, or one of the operators'; gives the caller's name."""
    name = peer_name(context)
    if name not in operators:
        try:
            check_device_id(name)
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
    return name


async def require_device(
    request: pb.WatchRequest | pb.ReportActiveRequest, context: Context
) -> str:
    """Ends the call unless a device makes it under its own name, which it gives."""
    name = peer_name(context)
    if request.device_id != name:
        await refuse(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate is of {name!r}, the call says {request.device_id[:80]!r}: a "
            "device speaks under its own name",
        )
    return await require_member(context, operators=frozenset())


async def require_reporter(request: pb.ReportActiveRequest, context: Context) -> str:
    """The same of a report; a relay makes it for those behind it."""
    if not peer_is_relay(context):
        return await require_device(request, context)
    try:
        return check_device_id(request.device_id)
    except ConfigError as error:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
