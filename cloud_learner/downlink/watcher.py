"""One open watch of a parameter server, and which version each device is held at meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

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
        code: With which status then.
        answer_due_s: Until when the device may answer the refresh it was sent, by the loop's clock;
            None: it has, or none was sent.
        sent_version: Of that refresh; 0 where no answer is expected.
        handled_version: The newest that its device said it has handled.
    """

    __slots__ = (
        "_is_due",
        "answer_due_s",
        "code",
        "ended",
        "handled_version",
        "sent_version",
        "wake",
    )

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = ""
        self.code = grpc.StatusCode.RESOURCE_EXHAUSTED
        self.answer_due_s: float | None = None
        self.sent_version = 0
        self.handled_version = 0
        self._is_due = False  # something newer waits for the answer

    def end(self, why: str, code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED) -> None:
        """Has it end."""
        self.ended, self.code = why, code
        self.wake.set()

    def handled(self, version: int) -> None:
        """Takes what its device says; an earlier report may come late."""
        self.handled_version = max(version, self.handled_version)
        if version >= self.sent_version:
            self.answer_due_s = None
            if self._is_due:  # else there is nothing new, and nothing to look at
                self.wake.set()

    async def answered(self, due_s: float) -> None:
        """Waits until it has to look again, or its device took too long."""
        self._is_due = True
        try:
            async with asyncio.timeout_at(due_s):
                await self.wake.wait()
        except TimeoutError:
            self.answer_due_s = None
        finally:
            self._is_due = False
