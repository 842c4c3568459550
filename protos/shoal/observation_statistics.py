"""Count, mean and squared deviations of observed numbers, merged in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StatisticsRefused
from shoal.layout import Field, ObservationLayout
from shoal.spaces import Box
from shoal.tensors import Array
from shoal.v1 import statistics_pb2 as pb

MAX_NUMBERS: Final = 16_384
"""Of an observation, that statistics are told of: 256 KiB."""
MAX_COUNT: Final = 1 << 40
"""Observations of one run: at 1,000 a second those of 34 years."""
MAX_MAGNITUDE: Final = 1e18
"""Of an observed number. Beyond it the squares of many could not be told apart from infinity."""
_TOLD_MAGNITUDE: Final = 2 * MAX_MAGNITUDE
_FLOAT: Final = np.dtype("<f8")


@dataclass(frozen=True, slots=True, eq=False)
class ObservationStatistics:
    """Of the E numbers of observations.

    Attributes:
        count: Observations.
        mean: `[E]` float64.
        squares: `[E]` float64, sums of squared deviations from the mean.

    >>> seen = ObservationStatistics.of(numbers_of(chunk.observations[:-1], layout))
    >>> merged([seen, others]).squares
    """

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[np.float64]) -> Self:
        """Of rows `[R, E]`, R at least 1."""
        mean = rows.mean(0)
        return cls(len(rows), mean, np.square(rows - mean).sum(0))

    def to_pb(self) -> pb.ObservationStatistics:
        """As a message."""
        return pb.ObservationStatistics(
            count=self.count,
            mean=self.mean.astype(_FLOAT).tobytes(),
            squares=self.squares.astype(_FLOAT).tobytes(),
        )

    @classmethod
    def from_pb(cls, message: pb.ObservationStatistics, *, numbers: int) -> Self:
        """Reads a message.

        Args:
            message: As it came.
            numbers: E, as the receiver knows it.

        Raises:
            StatisticsRefused: It is not of E numbers, or no observations have such.
        """
        if not 0 < message.count <= MAX_COUNT:
            raise StatisticsRefused("count", f"statistics: of {message.count} observations")
        columns: list[NDArray[np.float64]] = []
        for name, data in (("mean", message.mean), ("squares", message.squares)):
            if len(data) != _FLOAT.itemsize * numbers:
                raise StatisticsRefused("shape", f"statistics: {name} must be {numbers} float64")
            columns.append(np.frombuffer(data, _FLOAT).astype(np.float64))
        mean, squares = columns
        if not (np.isfinite(mean).all() and np.isfinite(squares).all()):
            raise StatisticsRefused("non_finite", "statistics: a number is not finite")
        if (squares < 0.0).any():
            raise StatisticsRefused("negative", "statistics: a sum of squares is below 0")
        widest = message.count * _TOLD_MAGNITUDE**2
        if (np.abs(mean) > _TOLD_MAGNITUDE).any() or (squares > widest).any():
            raise StatisticsRefused(
                "range", f"statistics: numbers beyond {MAX_MAGNITUDE:g} cannot be normalized"
            )
        return cls(message.count, mean, squares)


def merged(parts: Sequence[ObservationStatistics]) -> ObservationStatistics:
    """Those of all that any part is of (Chan, Golub & LeVeque 1979, equations 2.1, for K parts).

    Deviations are taken from the first part's mean, so that what is far from 0 loses nothing.

    Args:
        parts: One or more, of the same numbers, no observation in two of them.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    counts = np.array([part.count for part in parts], np.float64)[:, None]
    apart = np.stack([part.mean for part in parts]) - first.mean
    offset = (counts * apart).sum(0) / counts.sum()
    squares = np.stack([part.squares for part in parts]).sum(0)
    squares += (counts * np.square(apart - offset)).sum(0)
    return ObservationStatistics(sum(part.count for part in parts), first.mean + offset, squares)


def number_fields(layout: ObservationLayout) -> tuple[Field, ...]:
    """The leaves whose elements are numbers: Boxes, but for pixels (uint8) and booleans."""
    return tuple(
        field
        for field in layout.fields
        if isinstance(field.space, Box) and field.dtype.str[1:] not in ("u1", "b1")
    )


def count_numbers(layout: ObservationLayout) -> int:
    """E of observations."""
    return sum(math.prod(field.shape) for field in number_fields(layout))


def numbers_of(observations: Array, layout: ObservationLayout) -> NDArray[np.float64]:
    """The numbers `[R, E]` of observations `[..., *layout.shape]`, in the order of the leaves."""
    rows = observations.reshape(-1, *layout.shape)
    leaves = layout.unpack(rows)
    columns = [
        leaves[field.path].reshape(len(rows), math.prod(field.shape)).astype(np.float64)
        for field in number_fields(layout)
    ]
    return np.concatenate(columns, 1) if columns else np.zeros((len(rows), 0))
