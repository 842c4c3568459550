"""Blocking work that is finished even when the service that waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread_to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work in a thread and waits for its end, whatever happens meanwhile.

    A thread cannot be cancelled: if its waiter left, it would go on with a model or a file that
    others believe at rest. So cancellation is held back until the work is done.

    Raises:
        asyncio.CancelledError: The waiter was cancelled; the work is done all the same.
        Exception: Whatever the work raises.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
