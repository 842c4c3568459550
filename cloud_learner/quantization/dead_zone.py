"""Integers that move only when they have to, so that few differ between two versions.

An integer stays while the weight lies within its cell and a part of a step beyond. What is
published errs by that part more at most; a weight that wanders about the border of two cells stays
in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

BIAS_STEP: Final = 64.0
"""Units of a bias that count as one step: what one step of a weight does to an activation of 64."""


class DeadZone:
    """The integers of the last version, by name.

    >>> zone = DeadZone(0.25)
    >>> zone.settle("weight.0", units)     # whole numbers, shaped like units

    Attributes:
        held: Whole numbers in float tensors, by the name of what they are of.
    """

    def __init__(self, width: float, held: Mapping[str, Tensor] | None = None) -> None:
        """Begins with what was held.

        Args:
            width: In steps; 0 rounds to the nearest whole number whatever was before.
            held: As of an earlier one.
        """
        self.width = width
        self.held: dict[str, Tensor] = dict(held or {})

    def settle(self, name: str, units: Tensor, *, step: float = 1.0) -> Tensor:
        """The integers to use.

        Args:
            name: What they are of.
            units: The exact values, in the units of now, whose scale may have moved. In float32
                they are within 2^22, so that sums of whole numbers are exact; they are used up.
            step: Units that count as one step.

        Returns:
            Where it is near enough what was used before, else the nearest whole numbers.
        """
        if self.width <= 0.0:
            return units.round()
        held = self.held.get(name)
        if held is None or held.shape != units.shape:
            rounded = units.round()
        elif units.dtype == torch.float32:
            # `where` would take a branch for each of millions, and more memory: twice the time.
            moves = (units - held).abs_().gt_(0.5 + self.width * step)  # 0 or 1
            rounded = units.round_().sub_(held).mul_(moves).add_(held)
        else:
            stays = (units - held).abs_() <= 0.5 + self.width * step
            rounded = torch.where(stays, held, units.round())
        self.held[name] = rounded
        return rounded
