"""Observations shifted and scaled to mean 0 and variance 1, by what was seen so far."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.acting_normalizer import ActingNormalizer
from shoal.observation_statistics import ObservationStatistics

NORMALIZED_MAX: Final = 10.0
"""Normalized numbers lie within this magnitude: one outlier cannot upset a network."""
_MIN_VARIANCE: Final = 1e-8


class Normalizer(nn.Module):
    """Running mean and variance of the columns of a vector; the other columns pass as they are.

    >>> normalizer.update(rows)              # float32 [R, width], each row once
    >>> normalizer(vector)                   # [..., width]

    The two buffers that act, `shift` and `gain`, are float32 and travel with a policy; the sums
    behind them are float64 and stay in the checkpoint.
    """

    shift: Tensor
    gain: Tensor
    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, columns: NDArray[np.bool_], scale: NDArray[np.float32]) -> None:
        """Starts with mean 0 and variance 1.

        Args:
            columns: Which columns `[width]` are normalized.
            scale: What the others `[width]` are multiplied by.
        """
        super().__init__()
        width = len(columns)
        self.register_buffer("columns", torch.from_numpy(columns), persistent=False)
        self.register_buffer("scale", torch.from_numpy(scale), persistent=False)
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("gain", torch.from_numpy(np.where(columns, np.float32(1.0), scale)))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    def forward(self, vector: Tensor) -> Tensor:
        """(vector - mean) / deviation, within `NORMALIZED_MAX`."""
        return ((vector - self.shift) * self.gain).clamp(-NORMALIZED_MAX, NORMALIZED_MAX)

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """Merges rows into what was seen before (Chan et al. 1979, equations 2.1).

        Args:
            rows: float32 `[R, width]`; each row of experience once.
        """
        if not len(rows):
            return
        rows = rows.to(torch.float64)
        mean, added = rows.mean(0), float(len(rows))
        squares = (rows - mean).square().sum(0)
        total = self.count + added
        apart = mean - self.mean
        self.squares += squares + apart.square() * (self.count * added / total)
        self.mean += apart * (added / total)
        self.count.copy_(total)
        self._act()

    @property
    def numbers(self) -> int:
        """E, the columns that are normalized."""
        return int(self.columns.sum())

    @property
    def statistics(self) -> ObservationStatistics | None:
        """What was seen of those columns; None if nothing was."""
        if not self.count:
            return None
        mean, squares = (each[self.columns].numpy() for each in (self.mean, self.squares))
        return ObservationStatistics(int(self.count), mean, squares)

    @torch.no_grad()
    def follow(self, statistics: ObservationStatistics) -> None:
        """Takes over what was seen elsewhere, of its E columns, in place of what it saw."""
        self.count.fill_(statistics.count)
        self.mean[self.columns] = torch.from_numpy(statistics.mean)
        self.squares[self.columns] = torch.from_numpy(statistics.squares)
        self._act()

    def acting(self, version: int) -> ActingNormalizer:
        """A copy of what it does, as that of a version."""
        shift, gain = (each[self.columns].numpy() for each in (self.shift, self.gain))
        return ActingNormalizer(version, shift, gain)

    @torch.no_grad()
    def act_as(self, acting: ActingNormalizer) -> None:
        """Does what a version does, of the same E numbers; what was seen stays."""
        self.shift[self.columns] = torch.from_numpy(acting.shift.copy())
        self.gain[self.columns] = torch.from_numpy(acting.gain.copy())

    def _act(self) -> None:
        deviation = (self.squares / self.count).clamp(min=_MIN_VARIANCE).sqrt()
        self.shift.copy_(torch.where(self.columns, self.mean, 0.0))
        self.gain.copy_(torch.where(self.columns, 1.0 / deviation, self.scale))

    columns: Tensor
    scale: Tensor
