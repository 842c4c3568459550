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

    Devices take turns, so the flood of one holds up no other; each one's messages keep their order.
    When it is full, the newest message of the device that fills it most is dropped and counted:
    whoever sent a chunk sends it again.

    lane = Lane(capacity=4096)
    lane.offer(message)                  # from the network thread
    messages = await lane.take(256)      # on the loop
    lane.enough = 32                     # `take` waits for so many, until it is set lower
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Message]] = {}
        self._count = 0
        self._enough = 1
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Messages that found the lane full."""
        return self._dropped

    @property
    def enough(self) -> int:
        """How many messages `take` waits for; set from the event loop."""
        return self._enough

    @enough.setter
    def enough(self, count: int) -> None:
        with self._lock:
            self._enough = count
        if self._count >= count:
            self._filled.set()

    def __len__(self) -> int:
        return self._count

    def offer(self, message: Message) -> bool:
        """Puts a message in; False when the lane is full and the message was dropped."""
        sender = message.topic.rpartition("/up/")[0]
        with self._lock:
            if self._count >= self._capacity and not self._make_room(sender):
                return False
            self._queues.setdefault(sender, deque()).append(message)
            self._count += 1
            enough = self._count == self._enough
        if enough:
            self._loop.call_soon_threadsafe(self._filled.set)
        return True

    async def take(self, limit: int) -> list[Message]:
        """Waits for enough messages and takes those that are there, `limit` at most."""
        while self._count < self._enough:
            self._filled.clear()
            if self._count < self._enough:  # filled just before the clear
                await self._filled.wait()
        with self._lock:
            return [self._pop_next() for _ in range(min(limit, self._count))]

    def _pop_next(self) -> Message:
        """The oldest message of the device whose turn it is, which goes to the end of the line."""
        sender = next(iter(self._queues))
        queue = self._queues.pop(sender)
        message = queue.popleft()
        if queue:
            self._queues[sender] = queue
        self._count -= 1
        return message

    def _make_room(self, sender: str) -> bool:
        """Drops one message; False when it has to be the one that `sender` offers."""
        self._dropped += 1
        longest = max(self._queues.values(), key=len)
        if len(longest) <= len(self._queues.get(sender, ())) + 1:
            return False
        longest.pop()  # two at least were in it, so it is not left empty
        self._count -= 1
        return True


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
