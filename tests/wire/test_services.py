"""A process is a group of services that stops as a whole."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import JournalError, ServiceEnded
from shoal.services import backoff, in_thread, run_services


class Worker:
    """Runs until cancelled, and remembers that it cleaned up."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned_up = False

    async def run(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned_up = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_every_service_and_is_no_error(number: signal.Signals) -> None:
    async def scenario() -> None:
        workers = [Worker(), Worker()]

        async def killer() -> None:
            for worker in workers:
                await worker.started.wait()
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

        await run_services({"a": workers[0].run, "b": workers[1].run, "killer": killer})
        assert all(worker.cleaned_up for worker in workers)

    asyncio.run(scenario())


def test_a_failing_service_stops_the_others_and_its_error_comes_out() -> None:
    async def scenario() -> None:
        worker = Worker()

        async def fails() -> None:
            await worker.started.wait()
            raise JournalError("disk full")

        with pytest.raises(JournalError, match="disk full"):
            await run_services({"worker": worker.run, "fails": fails})
        assert worker.cleaned_up

    asyncio.run(scenario())


def test_a_service_that_ends_by_itself_is_an_error() -> None:
    async def scenario() -> None:
        worker = Worker()

        async def ends() -> None:
            await worker.started.wait()

        with pytest.raises(ServiceEnded, match="'ends'"):
            await run_services({"worker": worker.run, "ends": ends})
        assert worker.cleaned_up

    asyncio.run(scenario())


def test_a_service_that_cancels_itself_is_an_error_too() -> None:
    async def scenario() -> None:
        worker = Worker()

        async def cancels_itself() -> None:
            await worker.started.wait()
            raise asyncio.CancelledError

        with pytest.raises(ServiceEnded, match="cancels_itself"):
            await run_services({"worker": worker.run, "cancels_itself": cancels_itself})
        assert worker.cleaned_up

    asyncio.run(scenario())


def test_signal_handlers_are_put_back() -> None:
    async def scenario() -> None:
        async def ends() -> None:
            await asyncio.Event().wait()

        task = asyncio.ensure_future(run_services({"ends": ends}))
        await asyncio.wait({task}, timeout=0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_blocking_work_is_told_to_stop_and_waited_for() -> None:
    started, finished = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        started.set()
        stop.wait()
        finished.set()

    async def stopper() -> None:
        await asyncio.to_thread(started.wait)
        raise JournalError("stop")

    with pytest.raises(JournalError):
        asyncio.run(run_services({"work": in_thread(work), "stopper": stopper}))
    assert finished.is_set()


def test_an_error_in_blocking_work_comes_out() -> None:
    def work(_stop: threading.Event) -> None:
        raise JournalError("broken")

    with pytest.raises(JournalError, match="broken"):
        asyncio.run(run_services({"work": in_thread(work)}))


@given(st.integers(0, 10_000), st.floats(0.001, 10), st.floats(0.001, 1000), st.integers())
def test_backoff_stays_within_its_exponential_and_its_cap(
    attempt: int, base_s: float, cap_s: float, seed: int
) -> None:
    wait_s = backoff(attempt, base_s=base_s, cap_s=cap_s, rng=random.Random(seed))
    assert 0.0 <= wait_s <= cap_s
    assert wait_s <= base_s * 2.0 ** min(attempt, 62)


def test_backoff_has_full_jitter() -> None:
    rng = random.Random(0)
    waits = [backoff(9, base_s=1, cap_s=8, rng=rng) for _ in range(2000)]
    assert min(waits) < 0.1
    assert max(waits) > 7.9
    assert abs(sum(waits) / len(waits) - 4) < 0.2


def test_work_that_does_not_look_at_its_event_is_left_behind() -> None:
    release = threading.Event()

    async def main() -> None:
        service = in_thread(lambda _stop: release.wait(), patience_s=0.01)  # type: ignore[arg-type]
        task = asyncio.ensure_future(service())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(main())
    finally:
        release.set()
