"""Whose calls were refused, and why: counted, and told to the fleet."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from cloud_learner.serving.grpc_server import OTHER_FLEET, Context, peer_name
from cloud_learner.serving.interceptor import Behaviour, CallInterceptor, responses_of

REASONS: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "revoked",
    grpc.StatusCode.PERMISSION_DENIED: "not_permitted",
    grpc.StatusCode.FAILED_PRECONDITION: "wrong_state",
    grpc.StatusCode.INVALID_ARGUMENT: "malformed",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too_many",
}
"""What a status means that a server of ours ends a call with; others are no refusals."""


@dataclass(frozen=True, slots=True)
class CallRefusal:
    """A call that was refused.

    Attributes:
        name: The common name of the caller's certificate, which is of the fleet.
        reason: `revoked`, `not_permitted`, `wrong_fleet`, `wrong_state`, `malformed` or
            `too_many`. A wrong state: what was asked for is not possible now.
        detail: What the caller was told.
    """

    name: str
    reason: str
    detail: str


class CallRefusals:
    """Looks at how every call ends.

    refusals = CallRefusals(counters, fleet.note_call_refused)
    async with GrpcServer(..., interceptors=refusals.interceptors) as server: ...

    Attributes:
        interceptors: The first of a server's, so that they see what others refuse.
    """

    def __init__(self, counters: Counter[str], note: Callable[[CallRefusal], object]) -> None:
        """Looks at nothing yet.

        Args:
            counters: Where to count, as `calls_refused_REASON`.
            note: Told of each.
        """
        self._counters = counters
        self._note = note
        self.interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (
            CallInterceptor(single=self._single, streaming=self._streaming),
        )

    def _single(self, behaviour: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:  # noqa: ANN401
            try:
                return await behaviour(request, context)
            finally:
                self._look(context)

        return call

    def _streaming(self, behaviour: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
            try:
                async with contextlib.aclosing(
                    responses_of(behaviour, request, context)
                ) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._look(context)

        return call

    def _look(self, context: Context) -> None:
        reason = REASONS.get(context.code())
        if reason is None:
            return
        details = str(context.details())
        if reason == "wrong_state" and details.startswith(OTHER_FLEET):
            reason = "wrong_fleet"
        self._counters[f"calls_refused_{reason}"] += 1
        self._note(CallRefusal(peer_name(context), reason, details))
