"""Connections upstream for the calls of many devices: as few as hold them all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

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


class ChannelPool:
    """Gives each call a channel with room; one without calls is closed. Used from the event loop.

    async with pool.channel() as channel:
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
        line = next((each for each in self._lines if each.calls < CALLS_PER_CHANNEL), None)
        if line is None:
            line = _Line(open_channel(self._config, self._identity))
            self._lines.append(line)
        line.calls += 1
        try:
            yield line.channel
        finally:
            line.calls -= 1
            if not line.calls:  # the next one connects at once, whatever became of this one
                self._lines.remove(line)
                await line.channel.close(None)
