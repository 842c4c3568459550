"""Stands around every call of a gRPC server, whatever kind of call it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

# gRPC's handlers have no type.
Behaviour = Callable[..., Any]


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # generic in stubs alone
    """Wraps what serves a call: one that answers once, and one that answers with a stream.

    GrpcServer(..., interceptors=[CallInterceptor(single=wrap, streaming=wrap_stream)])
    """

    def __init__(
        self,
        *,
        single: Callable[[Behaviour], Behaviour],
        streaming: Callable[[Behaviour], Behaviour],
    ) -> None:
        """Keeps the wraps.

        Args:
            single: Around a coroutine of request and context.
            streaming: Around what yields responses, or writes them to the context.
        """
        self._single = single
        self._streaming = streaming

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - gRPC's handlers have no type
        """Puts the wrap that fits around a handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.response_streaming:
            kind, wrap = "unary_stream", self._streaming
        else:
            kind, wrap = "unary_unary", self._single
        if handler.request_streaming:
            kind = kind.replace("unary_", "stream_", 1)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wrap(getattr(handler, kind)),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def responses_of(behaviour: Behaviour, request: Any, context: Any) -> Any:  # noqa: ANN401
    """What a streaming call yields; nothing, when its end is awaited, of one that writes."""
    responses = behaviour(request, context)
    return responses if hasattr(responses, "__anext__") else _nothing_after(responses)


async def _nothing_after(behaviour: Awaitable[Any]) -> AsyncGenerator[Any, None]:
    responses: tuple[Any, ...] = ()
    await behaviour
    for response in responses:
        yield response
