"""Messages on their way from the network thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the broker delivered it."""

    topic: str
    payload: bytes


class Lane:
    """A bounded queue that any thread may fill and the event loop empties, many at a time.

    When it is full the newest message is dropped and counted: whoever sent a chunk sends it again.

    lane = Lane(capacity=4096)
    lane.offer(message)                  # from the network thread
    messages = await lane.take(256)      # on the loop
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._lock = threading.Lock()
        self._messages: deque[Message] = deque()
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Messages that found the lane full."""
        return self._dropped

    def __len__(self) -> int:
        return len(self._messages)

    def offer(self, message: Message) -> bool:
        """Puts a message in; False when the lane is full and the message was dropped."""
        with self._lock:
            if len(self._messages) >= self._capacity:
                self._dropped += 1
                return False
            first = not self._messages
            self._messages.append(message)
        if first:
            self._loop.call_soon_threadsafe(self._filled.set)
        return True

    async def take(self, limit: int) -> list[Message]:
        """Waits for messages and takes those that are there, `limit` at most."""
        while not self._messages:
            self._filled.clear()
            if not self._messages:  # filled just before the clear
                await self._filled.wait()
        with self._lock:
            count = min(limit, len(self._messages))
            return [self._messages.popleft() for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Inbox:
    """Two lanes, so that neither a flood of chunks nor a full disk hides what devices say.

    Attributes:
        chunks: What comes on `up/trajectory`.
        reports: Everything else: status, telemetry, events.
    """

    chunks: Lane
    reports: Lane

    @classmethod
    def of(cls, capacity: int) -> Inbox:
        """Two empty lanes."""
        return cls(Lane(capacity), Lane(capacity))

    def offer(self, message: Message) -> bool:
        """Puts a message in its lane; False when it was dropped."""
        lane = self.chunks if message.topic.endswith("/trajectory") else self.reports
        return lane.offer(message)
