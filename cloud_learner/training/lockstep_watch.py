"""Says for whom a learner in lockstep waits, and when more devices act than take part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cloud_learner.fleet.fleet import Fleet
from cloud_learner.training.lockstep import Lockstep, Turn
from shoal.v1 import fleet_pb2

WAITS_AFTER_S: Final = 15.0
"""Seconds without a batch after which somebody is missing."""
_SHOWN: Final = 8  # devices in a message


def crowded(turn: Turn) -> str | None:
    """What is wrong when more devices send chunks than take part; None: nothing."""
    if len(turn.made) <= turn.devices:
        return None
    return (
        f"{len(turn.made)} devices send chunks ({_names(turn.made)}) and training.lockstep_devices "
        f"is {turn.devices}: a batch is of those who come first, and the run cannot be repeated; "
        f"set it to {len(turn.made)}, or stop the others"
    )


def waits(turn: Turn, health: Mapping[str, str], *, waited_s: float) -> str | None:
    """For whom a batch waits; None when it is whole.

    Args:
        turn: How far it has come.
        health: What the fleet says of each device it knows.
        waited_s: Since its policy version was published.
    """
    full = [device for device, made in turn.made.items() if made >= turn.chunks]
    if turn.learning or len(full) >= turn.devices:
        return None
    lengths = set(turn.lengths.values())
    if len(lengths) > 1:
        each = (f"{device} {steps}" for device, steps in turn.lengths.items())
        missing = (
            f"chunks of different lengths make no batch ({_names(each)} steps): give all devices "
            "the same actor.chunk_steps"
        )
    else:
        missing = f"it waits for {_missing(turn, health, full)}"
    return (
        f"lockstep has had no batch for {waited_s:.0f} s: {len(full)} of {turn.devices} devices "
        f"have made {turn.chunks} under policy version {turn.version}, and {missing}"
    )


def _missing(turn: Turn, health: Mapping[str, str], full: list[str]) -> str:
    known = sorted((turn.made.keys() | health.keys()) - set(full))
    named = [
        f"{device} ({turn.made.get(device, 0)} of {turn.chunks}, "
        f"{health.get(device, 'not heard of')})"
        for device in known
    ]
    unknown = turn.devices - len(full) - len(known)
    if unknown > 0:
        named.append(f"{unknown} that the fleet has not heard of")
    return f"{_names(named)}: start it again, or change training.lockstep_devices"


def _names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


async def watch_lockstep(
    lockstep: Lockstep,
    fleet: Fleet,
    *,
    after_s: float = WAITS_AFTER_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Raises and clears the conditions `lockstep_waits` and `lockstep_crowded`, until cancelled."""
    version, since_s = 0, clock()
    while True:
        await asyncio.sleep(after_s / 8)
        turn = lockstep.turn()
        if turn.version != version or turn.learning:
            version, since_s = turn.version, clock()
        waited_s = clock() - since_s
        late = waited_s >= after_s
        waiting = waits(turn, _health(fleet), waited_s=waited_s) if late else None
        for name, problem in (("lockstep_waits", waiting), ("lockstep_crowded", crowded(turn))):
            if problem is None:
                fleet.clear_condition(name)
            else:
                fleet.raise_condition(name, problem)


def _health(fleet: Fleet) -> dict[str, str]:
    """What the fleet says of each device, in a few words."""
    found: dict[str, str] = {}
    for device in fleet.devices():
        name = fleet_pb2.Health.Name(device.health).removeprefix("HEALTH_").lower()
        found[device.device_id] = ": ".join([name, *device.reasons[:1]])
    return found
