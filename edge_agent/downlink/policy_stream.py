"""The stream between a device and a parameter server: policies come by it, and reports go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

REPORT_DEADLINE_S: Final = 5.0
"""Of a report that is a call of its own; one on the stream ends with the stream."""
_NOT_FOLLOWED: Final = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL})
"""What `Follow` ends with at once where it cannot be had: gRPC gives INTERNAL where the answer came
while it was still writing, whatever the answer was. `Watch` says then what is wrong."""


class PolicyStream:
    """What a parameter server pushes over one connection, and what it is told meanwhile.

    A server that knows `Follow` is told on the very stream, which costs both sides less than a call
    for each report. Others are watched, and called.

    stream = PolicyStream(ParameterServerStub(channel), opened=tell.set)
    async with contextlib.aclosing(stream.parts(request)) as parts:
        async for part in parts: ...
    await stream.report(active)        # by another task, one at a time

    Attributes:
        server: Of the same connection.
    """

    def __init__(self, server: ParameterServerStub, *, opened: Callable[[], object]) -> None:
        """Asks for nothing yet.

        Args:
            server: Of one connection.
            opened: Called whenever reports can be made that could not be before.
        """
        self.server = server
        self._opened = opened
        self._follows = True  # until the server says that it does not know it
        self._calls = False  # whether a report is a call now
        self._call: grpc.aio.StreamStreamCall[Any, pb.Part] | None = None

    async def parts(self, request: pb.WatchRequest) -> AsyncGenerator[pb.Part, None]:
        """What the server pushes, until it ends that, or whoever reads does.

        Raises:
            AioRpcError: As the call.
        """
        followed = self._followed(request) if self._follows else self._watched(request)
        came = False
        try:
            async with contextlib.aclosing(followed) as parts:
                async for part in parts:
                    came = True
                    yield part
        except grpc.aio.AioRpcError as error:
            if came or not self._follows or error.code() not in _NOT_FOLLOWED:
                raise
            self._follows = error.code() is not grpc.StatusCode.UNIMPLEMENTED
        else:
            return
        async with contextlib.aclosing(self._watched(request)) as parts:
            async for part in parts:
                yield part

    async def _followed(self, request: pb.WatchRequest) -> AsyncGenerator[pb.Part, None]:
        call = self.server.Follow()
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # reading says why it is over
                await call.write(pb.FollowRequest(watch=request))
                self._call = call
                self._opened()
            async for part in call:
                yield part
        finally:
            self._call = None
            call.cancel()  # else an error of ours would leave the stream open on the server

    async def _watched(self, request: pb.WatchRequest) -> AsyncGenerator[pb.Part, None]:
        call = self.server.Watch(request)
        try:
            self._calls = True
            self._opened()
            async for part in call:
                yield part
        finally:
            self._calls = False
            call.cancel()

    async def report(self, active: pb.ReportActiveRequest) -> None:
        """Tells what acts; where there is no stream yet, or no more, the next one is to tell.

        Raises:
            AioRpcError: It was a call, which failed.
        """
        if self._calls:
            await self.server.ReportActive(active, timeout=REPORT_DEADLINE_S)
        elif self._call is not None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.write(pb.FollowRequest(active=active))
