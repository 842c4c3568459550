"""Has a synchronous learner look again when devices come and go, and says for whom it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from cloud_learner.fleet.fleet import Fleet
from cloud_learner.training.lockstep import Lockstep

LOOK_S: Final = 0.25
"""How soon a device that was lost is waited for no longer; its silence takes longer to tell."""
WAITS_AFTER_S: Final = 30.0
"""Seconds without a batch after which somebody should have a look."""
_SHOWN: Final = 8  # devices in a message


def waits(missing: Sequence[str], version: int, *, waited_s: float) -> str:
    """For whom a batch waits.

    Args:
        missing: Devices that are present and have not made their chunks.
        version: The policy version these are to be made under.
        waited_s: Since it was published.
    """
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return (
        f"there was no batch for {waited_s:.0f} s: mode 'sync' waits for what "
        f"{', '.join(missing[:_SHOWN])}{more} make under policy version {version}; stop a device "
        "that hangs, or use mode 'async', which waits for nobody"
    )


async def watch_sync(
    replay: Lockstep,
    fleet: Fleet,
    *,
    look_s: float = LOOK_S,
    after_s: float = WAITS_AFTER_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wakes the replay, and raises and clears the condition `sync_waits`, until cancelled."""
    version, since_s = 0, clock()
    while True:
        await asyncio.sleep(look_s)
        replay.wake()
        turn = replay.turn()
        if turn.version != version or turn.learning:
            version, since_s = turn.version, clock()
        waited_s = clock() - since_s
        if turn.missing and waited_s >= after_s:
            problem = waits(turn.missing, turn.version, waited_s=waited_s)
            fleet.raise_condition("sync_waits", problem)
        else:
            fleet.clear_condition("sync_waits")
