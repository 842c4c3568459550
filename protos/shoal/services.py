"""The one idiom of every process: a task group of named services that stops as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping

from shoal.errors import ServiceEnded
from shoal.logs import get_logger

Service = Callable[[], Awaitable[None]]
PATIENCE_S = 10.0
_log = get_logger("services")


async def run_services(services: Mapping[str, Service]) -> None:
    """Runs services until SIGTERM, SIGINT or the end of any of them.

    On a signal every service is cancelled, cleans up, and this returns. A service that raises ends
    the others, and its error is raised here.

    Raises:
        ServiceEnded: A service returned, though none was asked to stop.
        Exception: What a service raised, the first one if several did.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_guard(name, service, stop), name=name)
                for name, service in services.items()
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _guard(name: str, service: Service, stop: asyncio.Event) -> None:
    try:
        await service()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled it: something it awaited was. That ends it as surely as returning does.
    except BaseException as error:
        _log.error("service_failed", service=name, error=f"{type(error).__name__}: {error}")
        raise
    if not stop.is_set():
        raise ServiceEnded(f"service {name!r} ended, though nobody asked it to; see its log")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def in_thread(
    work: Callable[[threading.Event], None], *, patience_s: float = PATIENCE_S
) -> Service:
    """A service made of blocking work in a thread of its own.

    Args:
        work: Runs until the event it is given is set; it must look at it often.
        patience_s: How long a cancelled service waits for work that does not look. Then it is left
            behind in its thread, which does not keep the process alive.
    """

    async def service() -> None:
        loop = asyncio.get_running_loop()
        stop, done = threading.Event(), loop.create_future()

        def finish(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                work(stop)
            except BaseException as raised:  # noqa: BLE001 handed to whoever awaits the service
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, error)

        threading.Thread(target=run, name="service", daemon=True).start()
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            stop.set()
            try:
                await asyncio.wait_for(asyncio.shield(done), patience_s)
            except TimeoutError:
                _log.error("service_stuck", waited_s=patience_s)
            raise

    return service


def backoff(attempt: int, *, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Seconds to wait before another attempt: exponential, capped, with full jitter.

    Args:
        attempt: 0 for the first.
        base_s: The upper bound of the first wait.
        cap_s: The upper bound of any.
        rng: Where the jitter comes from.
    """
    ceiling = min(cap_s, base_s * 2.0 ** min(attempt, 62))
    return rng.uniform(0.0, ceiling)
