"""What a run observed so far: statistics that go with gradients, in place of observations."""

from __future__ import annotations

import numpy as np

from shoal.layout import ObservationLayout
from shoal.observation_statistics import (
    MAX_COUNT,
    MAX_MAGNITUDE,
    MAX_NUMBERS,
    ObservationStatistics,
    count_numbers,
    merged,
    numbers_of,
)
from shoal.tensors import Array


class Observed:
    """Running statistics of the numbers of observations, each observation once.

    >>> observed = Observed(layout)
    >>> observed.add(chunk.observations[:-1])
    >>> observed.statistics                    # None while nothing was added

    Attributes:
        left_out: Observations that held a number that is not finite, or too large to be squared.
    """

    def __init__(self, layout: ObservationLayout) -> None:
        """Has seen nothing.

        Args:
            layout: How observations lie.
        """
        self.left_out = 0
        self._layout = layout
        self._told_of = 0 < count_numbers(layout) <= MAX_NUMBERS
        self._statistics: ObservationStatistics | None = None

    @property
    def statistics(self) -> ObservationStatistics | None:
        """Of all so far; None where there was nothing, or nothing that statistics are of."""
        return self._statistics

    def add(self, observations: Array) -> None:
        """Adds observations `[..., *layout.shape]`."""
        if not self._told_of:
            return
        rows = numbers_of(observations, self._layout)
        with np.errstate(invalid="ignore"):
            usable = (np.abs(rows) <= MAX_MAGNITUDE).all(1)
        if not usable.all():
            self.left_out += int((~usable).sum())
            rows = rows[usable]
        before = self._statistics
        if not len(rows) or (before is not None and before.count + len(rows) > MAX_COUNT):
            return
        seen = ObservationStatistics.of(rows)
        self._statistics = seen if before is None else merged([before, seen])
