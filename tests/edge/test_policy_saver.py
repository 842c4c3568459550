"""What acts is settled and saved a moment later, and what came in that moment once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from mqtt_learner import asyncs

from edge_agent.policies.policy_saver import PolicySaver


class Store:
    """Versions that are accepted and saved; the first saving waits until it may end."""

    def __init__(self) -> None:
        self.accepted = 0
        self.saved: list[int] = []
        self.settled: list[int] = []
        self.saving, self.may_end = threading.Event(), threading.Event()
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def listening(self, changed: Callable[[], object]) -> Iterator[None]:
        self._listeners.append(changed)
        yield
        self._listeners.remove(changed)

    def accept(self, version: int) -> None:
        self.accepted = version
        for changed in self._listeners:
            changed()

    def settle(self) -> None:
        self.settled.append(self.accepted)

    def save(self) -> None:
        assert self.settled[-1:] == [self.accepted] or self.saved
        self.saved.append(self.accepted)
        self.saving.set()
        assert self.may_end.wait(10.0)
        self._loop.call_soon_threadsafe(self.done.set)


@contextlib.asynccontextmanager
async def saving(store: Store) -> AsyncIterator[None]:
    running = asyncio.ensure_future(PolicySaver(store, delay_s=0.0).serve())
    try:
        yield
    finally:
        store.may_end.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asyncs
async def test_what_was_accepted_before_it_served_is_saved() -> None:
    store = Store()
    store.accept(7)
    store.may_end.set()
    async with asyncio.timeout(10.0), saving(store):
        await store.done.wait()
        assert store.saved == [7]


@asyncs
async def test_what_comes_while_a_disk_is_slow_is_saved_once_and_nobody_waits_for_it() -> None:
    store = Store()
    async with asyncio.timeout(10.0), saving(store):
        await asyncio.to_thread(store.saving.wait)
        for version in (1, 2, 3):
            store.accept(version)
        store.saving.clear()
        store.may_end.set()
        await asyncio.to_thread(store.saving.wait)
        assert store.saved == [0, 3]
