"""Passes the calls of devices on: the relay speaks upstream, and names the device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio

from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.upstream import explain
from cloud_learner.serving.grpc_server import Context, require_device
from shoal.errors import ShoalError

MARGIN_S: Final = 0.5
"""How long before the device's deadline upstream has to have answered."""
DEADLINE_S: Final = 30.0
"""Of a call whose device gave it none."""
Response = TypeVar("Response")
Streaming: TypeAlias = "Callable[..., grpc.aio.UnaryStreamCall[Any, Response]]"


class Asked(Protocol):
    """What a device asks."""

    @property
    def device_id(self) -> str:
        """Who asks, as it says."""

    @property
    def fleet(self) -> str:
        """Of which fleet it takes this relay to be."""


class Forwarder:
    """Asks upstream what a device asked, and answers what it answered. Used from the event loop.

    A device asks under its own name only; what it asked is passed on as it is.

    forwarder = Forwarder(pool, fleet="reef", what="tasks")
    return await forwarder.ask(request, lambda channel: DispatcherStub(channel).NextTask, context)
    """

    def __init__(self, pool: ChannelPool, *, fleet: str, what: str) -> None:
        """Asks nothing yet.

        Args:
            pool: Connections upstream.
            fleet: The fleet served.
            what: What is asked for, for people.
        """
        self._pool = pool
        self._fleet = fleet
        self._what = what
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends every stream with UNAVAILABLE, so that devices connect again later."""
        self._stopping.set()

    async def ask(
        self,
        request: Asked,
        method: Callable[[grpc.aio.Channel], Callable[..., Awaitable[Response]]],
        context: Context,
    ) -> Response:
        """Makes a call upstream that has one answer.

        Args:
            request: What the device asked.
            method: That call of the stub of a channel.
            context: Of the device's call; it is ended with what went wrong.
        """
        await self._require_device(request, context)
        try:
            async with self._pool.channel() as channel:
                return await method(channel)(request, timeout=_timeout_s(context))
        except (grpc.aio.AioRpcError, ShoalError) as error:
            await self.fail(error, context)

    async def parts(
        self,
        request: Asked,
        method: Callable[[grpc.aio.Channel], Streaming[Response]],
        context: Context,
    ) -> AsyncIterator[Response]:
        """Makes a call upstream whose answers end by themselves.

        Args:
            request: What the device asked.
            method: That call of the stub of a channel.
            context: Of the device's call; it is ended with what went wrong.
        """
        await self._require_device(request, context)
        try:
            async with self._pool.channel() as channel:
                asked = method(channel)(request, timeout=_timeout_s(context))
                try:
                    async for part in asked:
                        yield part
                finally:
                    asked.cancel()  # else upstream would go on for a device that left
        except (grpc.aio.AioRpcError, ShoalError) as error:
            await self.fail(error, context)

    async def stream(
        self,
        request: Asked,
        method: Callable[[grpc.aio.Channel], Streaming[Response]],
        context: Context,
    ) -> AsyncIterator[Response]:
        """Makes a call upstream whose answers never end, until this relay or upstream stops.

        Args:
            request: What the device asked.
            method: That call of the stub of a channel.
            context: Of the device's call; it is ended with what went wrong.
        """
        await self._require_device(request, context)
        stop = asyncio.ensure_future(self._stopping.wait())
        answer: asyncio.Future[Response | None] | None = None
        try:
            async with self._pool.channel() as channel:
                asked = method(channel)(request)
                answers = aiter(asked)
                try:
                    while True:
                        answer = asyncio.ensure_future(_next(answers))
                        await asyncio.wait({answer, stop}, return_when=asyncio.FIRST_COMPLETED)
                        given = answer.result() if answer.done() else None
                        if given is None:
                            break
                        yield given
                finally:
                    if answer is not None:
                        answer.cancel()
                    asked.cancel()  # else upstream would go on for a device that left
        except (grpc.aio.AioRpcError, ShoalError) as error:
            await self.fail(error, context)
        finally:
            stop.cancel()
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, "this relay, or what is upstream of it, stops: come back"
        )

    async def _require_device(self, request: Asked, context: Context) -> None:
        await require_device(context, request.device_id, request.fleet, self._fleet)

    async def fail(self, error: grpc.aio.AioRpcError | ShoalError, context: Context) -> NoReturn:
        """Ends a device's call with what became of it upstream."""
        where = self._pool.address
        code, problem = grpc.StatusCode.UNAVAILABLE, f"this relay cannot serve it now: {error}"
        if isinstance(error, grpc.aio.AioRpcError):
            code = error.code()
            problem = f"this relay asked {where}: {error.details()}"
            if code is grpc.StatusCode.UNAVAILABLE:
                problem = (
                    f"this relay cannot reach {where} now ({explain(error)}): {self._what} wait"
                )
            elif code is grpc.StatusCode.UNIMPLEMENTED:
                problem = f"the server at {where} knows no {self._what}: update it"
            elif code is grpc.StatusCode.PERMISSION_DENIED:
                problem += "; if that learner is older than this relay, update it"
        await context.abort(code, problem)
        raise AssertionError("abort raises")  # its stub says NoReturn, its body is compiled


def _timeout_s(context: Context) -> float:
    # None, whatever its stub says, for a caller without a deadline.
    left: float | None = context.time_remaining()
    return DEADLINE_S if left is None else max(0.0, min(DEADLINE_S, left - MARGIN_S))


async def _next(answers: AsyncIterator[Response]) -> Response | None:
    async for answer in answers:
        return answer
    return None
