"""Has what acts written to disk a moment later, whatever came in that moment in one go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

SAVE_DELAY_S: Final = 0.5
"""Between a policy that acts and its file: so much of newer policies a power cut may cost, and so
often a card is written to at most."""


class Saved(Protocol):
    """What is needed of a policy store."""

    def listening(self, changed: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Has `changed` called, by any thread, whenever another policy became current."""

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

    async def serve(self) -> None:
        """Saves for ever, in a thread that nobody else waits for: a disk may take long."""
        loop = asyncio.get_running_loop()
        accepted = asyncio.Event()
        accepted.set()  # there may be something already

        def changed() -> None:  # in any thread
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(accepted.set)

        with ThreadPoolExecutor(1, "policy-save") as disk, self._policies.listening(changed):
            while True:
                await accepted.wait()
                await asyncio.sleep(self._delay_s)
                accepted.clear()
                await loop.run_in_executor(disk, self._policies.save)
