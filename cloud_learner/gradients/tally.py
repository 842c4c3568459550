"""What became of the updates of each device, and what they said, since it was last asked."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cloud_learner.gradients.rules import Outcome

MAX_DEVICES: Final = 65_536
MAX_METRICS: Final = 64
"""Names of scalars, of all devices together: what is more is not shown."""
_LAGS: Final = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """What was applied since the last interval.

    Attributes:
        updates: How many.
        transitions: They were computed from.
        lags: `[U]` int64, of the newest of them.
        means: Scalars of the devices, by name.
    """

    updates: int
    transitions: int
    lags: NDArray[np.int64]
    means: Mapping[str, float]


class Tally:
    """Counts by device and outcome, for ever; means of what came, for an interval.

    tally = Tally(counters)
    tally.note_applied("pi-1", lag=3, transitions=256, metrics={"entropy": 0.6})
    tally.take().means["entropy"]
    """

    def __init__(self, counters: Counter[str]) -> None:
        """Has counted nothing.

        Args:
            counters: The learner's, to which `updates_pushed`, `updates_applied` and
                `updates_refused_REASON` are added, and `statistics_refused_REASON`.
        """
        self._counters = counters
        self._devices: OrderedDict[str, Counter[str]] = OrderedDict()
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._lags: deque[int] = deque(maxlen=_LAGS)
        self._updates = 0
        self._transitions = 0

    @property
    def waiting(self) -> int:
        """Updates that were applied in this interval so far."""
        return self._updates

    def of(self, device_id: str) -> Mapping[str, int]:
        """What became of a device's updates, by outcome."""
        return self._devices.get(device_id, {})

    def note(self, device_id: str, outcome: Outcome) -> None:
        """Counts an update."""
        counts = self._devices.get(device_id)
        if counts is None:
            counts = self._devices[device_id] = Counter()
            if len(self._devices) > MAX_DEVICES:
                self._devices.popitem(last=False)
        counts[outcome.value] += 1
        self._counters["updates_pushed"] += 1
        applied = outcome is Outcome.APPLIED
        self._counters["updates_applied" if applied else f"updates_refused_{outcome.value}"] += 1

    def note_statistics_refused(self, reason: str) -> None:
        """Counts statistics of observations that were not taken in."""
        self._counters[f"statistics_refused_{reason}"] += 1

    def note_applied(
        self, device_id: str, *, lag: int, transitions: int, metrics: Mapping[str, float]
    ) -> None:
        """Counts an update that was applied, and what it said."""
        self.note(device_id, Outcome.APPLIED)
        self._updates += 1
        self._transitions += transitions
        self._lags.append(lag)
        for name, value in metrics.items():
            if name in self._sums or len(self._sums) < MAX_METRICS:
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._counts[name] += 1

    def take(self) -> Interval:
        """Ends an interval, and begins the next."""
        interval = Interval(
            updates=self._updates,
            transitions=self._transitions,
            lags=np.array(self._lags, np.int64),
            means={name: total / self._counts[name] for name, total in self._sums.items()},
        )
        self._sums, self._counts = {}, Counter()
        self._lags.clear()
        self._updates = self._transitions = 0
        return interval
