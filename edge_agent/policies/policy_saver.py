"""Does a moment later what a policy that acts has left to do: settling, and being written to disk.

What came in that moment is written in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

SAVE_DELAY_S: Final = 0.5
"""Between a policy that acts and its file: so much of newer policies a power cut may cost, and so
often a card is written to at most."""

SETTLE_DELAY_S: Final = 0.45
"""Between a policy that acts and the session in which it decides as fast as it can: long enough for
all devices of one machine to act with it before the first of them builds that."""


class Saved(Protocol):
    """What is needed of a policy store."""

    def listening(self, changed: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Has `changed` called, by any thread, whenever another policy became current."""

    def settle(self) -> None:
        """Has what acts decide as fast as it can."""

    def save(self) -> None:
        """Has what was accepted survive a power cut."""


class PolicySaver:
    """Saves what was accepted; a store saves what is left when it is closed.

    saver = PolicySaver(policies)
    await run_services({"saving": saver.serve, ...})
    """

    def __init__(self, policies: Saved, *, delay_s: float = SAVE_DELAY_S) -> None:
        """Saves nothing yet.

        Args:
            policies: The store.
            delay_s: See `SAVE_DELAY_S`.
        """
        self._policies = policies
        self._delay_s = delay_s
        self._settle_s = min(delay_s, SETTLE_DELAY_S)

    async def serve(self) -> None:
        """Saves for ever, in a thread that nobody else waits for: a disk may take long.

        That thread waits as well: what becomes current costs the event loop nothing.
        """
        accepted, ended = threading.Event(), threading.Event()
        accepted.set()  # there may be something already

        def save_often() -> None:
            while True:
                accepted.wait()
                if ended.wait(self._settle_s):
                    return
                self._policies.settle()
                if ended.wait(self._delay_s - self._settle_s):
                    return
                accepted.clear()
                self._policies.save()

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "policy-save") as disk, self._policies.listening(accepted.set):
            try:
                await loop.run_in_executor(disk, save_often)
            finally:
                ended.set()
                accepted.set()
