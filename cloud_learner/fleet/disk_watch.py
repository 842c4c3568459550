"""Notices that the learner's disk is full, though nothing may be writing to it then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

DISK_FULL: Final = "disk_full"
LEAST_FREE_BYTES: Final = 8 * 1024 * 1024
"""Below it a checkpoint or a journal's segment may not fit any more."""
LOOK_S: Final = 5.0


class Told(Protocol):
    """Who shows conditions; `cloud_learner.fleet.fleet.Fleet` does."""

    def raise_condition(self, name: str, message: str) -> None:
        """Says that something is wrong until it is cleared."""

    def clear_condition(self, name: str) -> None:
        """Says that it is over."""


def is_full(free_bytes: int, *, was_full: bool) -> bool:
    """Whether a disk counts as full; one that was has to have twice as much free again.

    >>> is_full(10 << 20, was_full=False), is_full(10 << 20, was_full=True)
    (False, True)
    """
    return free_bytes < LEAST_FREE_BYTES * (2 if was_full else 1)


def free_bytes_of(directory: Path) -> int:
    """What this user may still write to the disk of a directory.

    Raises:
        OSError: It cannot be looked at.
    """
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


async def watch_disk(
    directory: Path,
    told: Told,
    *,
    free_of: Callable[[Path], int] = free_bytes_of,
    every_s: float = LOOK_S,
) -> None:
    """Has the condition `disk_full` say so, until cancelled.

    A broker or devices on that disk may be stopped by it as well: then no chunk comes whose writing
    would fail, and the learner would seem to train.
    """
    full = False
    while True:
        try:
            free = await asyncio.to_thread(free_of, directory)
        except OSError:  # whatever is wrong with it, those who write say so
            free = None
        if free is not None:
            full = is_full(free, was_full=full)
            if full:
                told.raise_condition(
                    DISK_FULL,
                    f"the disk of state_dir {directory} has {free / 1e6:.1f} MB free: free space, "
                    "or lower journal.retain_bytes and policies_retain_bytes",
                )
            else:
                told.clear_condition(DISK_FULL)
        await asyncio.sleep(every_s)
