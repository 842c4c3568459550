"""Observations shifted and scaled to mean 0 and variance 1, by what was seen so far."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
        deviation = (self.squares / total).clamp(min=_MIN_VARIANCE).sqrt()
        self.shift.copy_(torch.where(self.columns, self.mean, 0.0))
        self.gain.copy_(torch.where(self.columns, 1.0 / deviation, self.scale))

    columns: Tensor
    scale: Tensor
