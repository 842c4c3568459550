"""One open watch of a parameter server, and which version each device is held at meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cloud_learner.downlink.published import Published


@dataclass(frozen=True, slots=True)
class Held:
    """Devices that do not follow the newest version: a rollout says what each may have.

    Attributes:
        version_of: The version of a device.
        versions: All of these.
    """

    version_of: Callable[[str], int]
    versions: Mapping[int, Published]


class Watcher:
    """One open watch: `wake` is set when it has to look again.

    Attributes:
        ended: Why it is to end; empty while it is not.
        answer_due_s: Until when the device may answer the refresh it was sent, by the loop's clock;
            None: it has, or none was sent.
        sent_version: Of that refresh.
    """

    __slots__ = ("answer_due_s", "ended", "sent_version", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = ""
        self.answer_due_s: float | None = None
        self.sent_version = 0

    def end(self, why: str) -> None:
        """Has it end."""
        self.ended = why
        self.wake.set()

    async def answered(self, due_s: float) -> None:
        """Waits until it has to look again, or its device took too long."""
        try:
            async with asyncio.timeout_at(due_s):
                await self.wake.wait()
        except TimeoutError:
            self.answer_due_s = None
