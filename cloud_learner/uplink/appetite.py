"""How much a learner wants, and of whom: pure rules, without a clock.

Devices may make more than the learner can use. Then what waits gets old, and old experience is
worth less and in the end nothing. So the learner says what it really uses, and each device makes
its share of that and no more. While the learner keeps up it wants all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloud_learner.training.source import Backlog

BEHIND_STEPS: Final = 2.0
"""Steps of the learner that wait when it counts as behind."""
SLACK: Final = 0.5
"""Part of a limit below which what devices make is not held back by it: it is lifted."""
LOWEST_STEPS_PER_S: Final = 1 / 60
"""Steps of the learner a second that are wanted at least, however slow it seems."""
GAIN: Final = 0.25
"""Part of the rate that each step too many takes away."""
LEAST: Final = 0.5
"""Part of what is consumed that is wanted at least."""
RISE_PER_S: Final = 0.1
"""Relative growth of the rate each second that less than a step waits."""
SLOW: Final = 0.8
"""Part of its share below which a device makes less of itself, not because it was told to."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was seen at one moment.

    Attributes:
        at_s: Monotonic seconds.
        backlog: How much the learner has before it.
        made: Transitions accepted from devices so far.
    """

    at_s: float
    backlog: Backlog
    made: int


def wanted_steps_per_s(before: float, readings: Sequence[Reading]) -> float:
    """Transitions a second wanted of the whole fleet; 0: as many as it makes.

    While a step or more waits, the learner never idles, and what is consumed is what it can use:
    that is wanted, less `GAIN` of it for each step beyond the first. While less waits it might use
    more: the rate rises. There is hysteresis: a limit comes when `BEHIND_STEPS` wait, and goes when
    the fleet makes less than `SLACK` of it anyway.

    Args:
        before: What was wanted until now.
        readings: Of the last seconds, the oldest first; two or more, or nothing changes.
    """
    if len(readings) < 2:  # noqa: PLR2004 - a rate is a difference
        return before
    earlier, last, now = readings[0], readings[-2], readings[-1]
    elapsed_s = max(now.at_s - earlier.at_s, 1e-9)
    step = max(now.backlog.step, 1e-9)
    behind = now.backlog.waiting / step
    consumed = (now.backlog.consumed - earlier.backlog.consumed) / elapsed_s
    made = (now.made - earlier.made) / elapsed_s
    lowest = LOWEST_STEPS_PER_S * step
    if before <= 0.0 and behind < BEHIND_STEPS:
        return 0.0
    if behind < 1.0:
        lifted = made < SLACK * before
        risen = before * (1.0 + RISE_PER_S) ** max(0.0, now.at_s - last.at_s)
        return 0.0 if lifted else max(lowest, risen)
    if consumed <= 0.0:  # not one step ended meanwhile
        consumed = SLACK * (before or made)
    return max(lowest, consumed * max(LEAST, 1.0 - GAIN * (behind - 1.0)))


def shares(total: float, rates: Mapping[str, float]) -> dict[str, float]:
    """Each device's share of a rate: equal, but what slow devices leave is for the others.

    Max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2), where a device that makes
    less than `SLOW` of its share is taken to have no more to give.

    Args:
        total: Transitions a second wanted of all; 0: as many as they make.
        rates: What each present device makes now, transitions a second.

    Returns:
        By device; 0: as many as it makes.
    """
    given: dict[str, float] = {}
    left, open_devices = total, sorted(rates, key=lambda device: (rates[device], device))
    while open_devices:
        share = left / len(open_devices)
        slowest = open_devices[0]
        if total <= 0.0 or rates[slowest] >= SLOW * share or len(open_devices) == 1:
            given.update(dict.fromkeys(open_devices, max(0.0, share)))
            break
        given[slowest] = share  # it may come up to that
        left -= rates[slowest]
        open_devices.pop(0)
    return given
