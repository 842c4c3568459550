"""What was observed, without the observations: moments and ranges, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError
from shoal.layout import ObservationLayout
from shoal.tensors import Array
from shoal.v1 import update_pb2 as pb

MAX_ELEMENTS: Final = 1024
"""Of an observation: larger ones are images, whose range their dtype says already."""
_FLOAT: Final = np.dtype("<f4")
_FIELDS: Final = ("mean", "variance", "low", "high")
_MAX_COUNT: Final = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of E elements.

    Attributes:
        count: Observations.
        mean: `[E]` float32.
        variance: `[E]` float32, of the population.
        low: `[E]` float32, the smallest.
        high: `[E]` float32, the largest.

    >>> Moments.of(chunk.observations[:-1], layout).merged(others, most=20_000)
    """

    count: int
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @classmethod
    def of(cls, observations: Array, layout: ObservationLayout) -> Self | None:
        """Of observations `[..., *layout.shape]`; None where they are no vector of numbers.

        None, too, when there are none, or one is not finite.
        """
        elements = int(np.prod(layout.shape, dtype=np.int64))
        if layout.packed or layout.dtype.kind not in "fiu" or not 0 < elements <= MAX_ELEMENTS:
            return None
        rows = observations.reshape(-1, elements).astype(np.float64)
        if not len(rows):
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            columns = (rows.mean(0), rows.var(0), rows.min(0), rows.max(0))
            floats = [column.astype(np.float32) for column in columns]
        if not all(np.isfinite(column).all() for column in floats):
            return None
        return cls(len(rows), *floats)

    def merged(self, newer: Moments, *, most: int) -> Moments:
        """Both together (Chan, Golub & LeVeque 1979), what is old fading.

        Args:
            newer: Of the same elements.
            most: As how many observations `self` counts at most; ranges move towards the newer
                ones by the same weights, and at once where those are wider.
        """
        before = min(self.count, most)
        total = before + newer.count
        part = np.float32(newer.count / total)
        apart = newer.mean - self.mean
        variance = self.variance + part * (newer.variance - self.variance)
        return Moments(
            count=min(total, most),
            mean=self.mean + part * apart,
            variance=variance + part * (1 - part) * apart * apart,
            low=np.minimum(newer.low, self.low + part * (newer.low - self.low)),
            high=np.maximum(newer.high, self.high + part * (newer.high - self.high)),
        )

    def draw(self, rows: int, layout: ObservationLayout, rng: np.random.Generator) -> Array:
        """Observations `[rows, *layout.shape]` that look alike, element by element.

        Normal, cut to the range, each element's ends once each: correlations are not known.
        """
        drawn = rng.normal(self.mean, np.sqrt(self.variance), (rows, len(self.mean)))
        drawn = np.clip(drawn, self.low, self.high)
        elements = np.arange(len(self.mean))
        drawn[rng.integers(0, rows, len(elements)), elements] = self.low
        drawn[rng.integers(0, rows, len(elements)), elements] = self.high
        if layout.dtype.kind in "iu":
            drawn = np.rint(drawn)
        return drawn.astype(layout.dtype).reshape(rows, *layout.shape)

    def to_pb(self) -> pb.ObservationMoments:
        """As a message."""
        columns = {name: getattr(self, name).astype(_FLOAT).tobytes() for name in _FIELDS}
        return pb.ObservationMoments(count=self.count, **columns)

    @classmethod
    def from_pb(cls, message: pb.ObservationMoments, layout: ObservationLayout) -> Self:
        """Reads a message.

        Raises:
            WireError: It is not of such observations, or its numbers cannot be.
        """
        elements = int(np.prod(layout.shape, dtype=np.int64))
        if layout.packed or not 0 < elements <= MAX_ELEMENTS:
            raise WireError("moments: observations are no vector of numbers")
        if not 0 < message.count < _MAX_COUNT:
            raise WireError(f"moments: of {message.count} observations")
        columns: list[NDArray[np.float32]] = []
        for name in _FIELDS:
            data: bytes = getattr(message, name)
            if len(data) != _FLOAT.itemsize * elements:
                raise WireError(f"moments: {name} must be {elements} float32")
            columns.append(np.frombuffer(data, _FLOAT))
        mean, variance, low, high = columns
        if not all(np.isfinite(column).all() for column in columns):
            raise WireError("moments: a number is not finite")
        if (variance < 0).any() or (low > high).any():
            raise WireError("moments: a variance below 0, or a range that is none")
        return cls(message.count, mean, variance, low, high)
