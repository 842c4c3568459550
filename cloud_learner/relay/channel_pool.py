"""Connections upstream for the calls of many devices: as few as hold them all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio

from cloud_learner.relay.config import UpstreamConfig
from cloud_learner.relay.upstream import open_channel
from shoal.identity import Identity

CALLS_PER_CHANNEL: Final = 48
"""A server takes 64 calls at once on a connection: a further one would wait, unseen, for ever."""


@dataclass(slots=True, eq=False)
class _Line:
    """A channel and how many calls go through it."""

    channel: grpc.aio.Channel
    calls: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether a call needs no handshake."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY


class ChannelPool:
    """Gives each call a channel with room. Used from the event loop.

    Of the channels without calls one stays open, while it is connected: a device's next gradient
    comes a moment later.

    async with ChannelPool(config, identity) as pool, pool.channel() as channel:
        await RolloutsStub(channel).ReportOutcome(request, timeout=10.0)
    """

    def __init__(self, config: UpstreamConfig, identity: Identity) -> None:
        """Connects nothing yet.

        Args:
            config: Where upstream is.
            identity: The relay.
        """
        self._config = config
        self._identity = identity
        self._lines: list[_Line] = []

    async def __aenter__(self) -> Self:
        """Returns the pool."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes what is open."""
        while self._lines:
            await self._close(self._lines[0])

    def __len__(self) -> int:
        """How many channels are open."""
        return len(self._lines)

    @property
    def address(self) -> str:
        """Where they lead, for people."""
        return f"{self._config.host}:{self._config.port}"

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """A channel for one call.

        Raises:
            IdentityError: A certificate or key cannot be read.
        """
        for stale in [each for each in self._lines if not each.calls and not each.is_ready]:
            await self._close(stale)  # a new one connects at once, whatever became of this one
        line = next((each for each in self._lines if each.calls < CALLS_PER_CHANNEL), None)
        if line is None:
            line = _Line(open_channel(self._config, self._identity))
            self._lines.append(line)
        line.calls += 1
        try:
            yield line.channel
        finally:
            line.calls -= 1
            spare = any(not each.calls for each in self._lines if each is not line)
            if not line.calls and (spare or not line.is_ready):
                await self._close(line)

    async def _close(self, line: _Line) -> None:
        if line in self._lines:
            self._lines.remove(line)
            await line.channel.close(None)
