"""The device's side of a stream on which it follows policies: its watch, and then its reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc

from cloud_learner.downlink.watcher import Watcher
from cloud_learner.serving.grpc_server import Context, refuse
from shoal.noise import RUN_ID_BYTES
from shoal.policy_delta import DIGEST_BYTES
from shoal.v1 import parameter_server_pb2 as pb

FIRST_REQUEST_S: Final = 30.0
"""How long a device may take to say what it watches."""
MAX_VERSION: Final = 2**62 - 1
"""The highest version that a manifest may carry."""


async def first_watch(
    requests: AsyncIterator[pb.FollowRequest], context: Context
) -> pb.WatchRequest:
    """Ends the call unless it begins with a watch."""
    first = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_REQUEST_S):
            first = await anext(requests, None)
    if first is None or not first.HasField("watch"):
        await refuse(
            context,
            grpc.StatusCode.INVALID_ARGUMENT,
            f"a stream begins with a watch, within {FIRST_REQUEST_S:g} s: send it first",
        )
    return first.watch


def problem_of(report: pb.ReportActiveRequest) -> str | None:
    """What a report says that no device can have; None where it makes sense."""
    digest_bytes = DIGEST_BYTES if report.version else 0
    if (
        len(report.digest) == digest_bytes
        and len(report.run_id) <= RUN_ID_BYTES
        and report.version <= MAX_VERSION
    ):
        return None
    return (
        f"version {report.version}, digest of {len(report.digest)} bytes, run_id of "
        f"{len(report.run_id)}: send what the manifest says, and {RUN_ID_BYTES} bytes"
    )


@contextlib.asynccontextmanager
async def hearing(
    requests: AsyncIterator[pb.FollowRequest],
    watch: pb.WatchRequest,
    watcher: Watcher,
    hear: Callable[[pb.ReportActiveRequest], object],
) -> AsyncIterator[None]:
    """Hands on each report of a device within the block.

    Args:
        requests: What follows its watch.
        watch: That.
        watcher: Ended by a report that makes no sense, or is of another device.
        hear: Takes a report.
    """
    listening = asyncio.ensure_future(_listen(requests, watch, watcher, hear))
    try:
        yield
    finally:
        listening.cancel()
        await asyncio.wait({listening})
        if not listening.cancelled():
            listening.result()


async def _listen(
    requests: AsyncIterator[pb.FollowRequest],
    watch: pb.WatchRequest,
    watcher: Watcher,
    hear: Callable[[pb.ReportActiveRequest], object],
) -> None:
    async for request in requests:
        report = request.active
        problem = problem_of(report) if request.HasField("active") else "no report: send one"
        if problem is not None:
            watcher.end(problem, grpc.StatusCode.INVALID_ARGUMENT)
            return
        for said, watched in ((report.device_id, watch.device_id), (report.fleet, watch.fleet)):
            if said not in ("", watched):
                problem = f"a report of {said[:80]!r} on the stream of {watched!r}: leave it out"
                watcher.end(problem, grpc.StatusCode.PERMISSION_DENIED)
                return
        hear(report)
