"""What devices act with, waiting to be told upstream: one report a device, the latest."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

MAX_DEVICES: Final = 20_000
"""Devices whose report may wait; beyond, the one that waits the longest is forgotten."""


@dataclass(frozen=True, slots=True)
class ActiveReport:
    """A device acts with a policy.

    Attributes:
        device_id: Which, as its certificate says.
        run_id: Its run, 16 bytes.
        version: Of the policy.
        digest: Of what it loaded, 32 bytes.
    """

    device_id: str
    run_id: bytes
    version: int
    digest: bytes


class ActiveReports:
    """Latest wins: a device that swapped thrice while upstream was away is told of once.

    reports = ActiveReports()
    reports.note(report)
    for report in await reports.take(64): ...
    reports.give_back(report)             # it could not be told; a newer one goes before it
    """

    def __init__(self, capacity: int = MAX_DEVICES) -> None:
        self._capacity = capacity
        self._waiting: dict[str, ActiveReport] = {}  # oldest first
        self._filled = asyncio.Event()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, report: ActiveReport) -> None:
        """Takes a report in the place of an earlier one of its device."""
        self._waiting.pop(report.device_id, None)
        self._put(report)

    def give_back(self, report: ActiveReport) -> None:
        """Takes one back, unless its device said something newer meanwhile."""
        if report.device_id not in self._waiting:
            self._put(report)

    async def take(self, limit: int) -> list[ActiveReport]:
        """Waits for reports and takes those that are there, `limit` at most, oldest first."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        names = list(self._waiting)[:limit]
        return [self._waiting.pop(name) for name in names]

    def _put(self, report: ActiveReport) -> None:
        while len(self._waiting) >= self._capacity:
            del self._waiting[next(iter(self._waiting))]
            self.forgotten += 1
        self._waiting[report.device_id] = report
        self._filled.set()
