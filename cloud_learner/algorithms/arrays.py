"""From numpy to torch."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from cloud_learner.training.experience import Transitions
from shoal.tensors import Array

_COLUMNS: Final = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "discounts",
    "weights",
)


def tensor(array: Array) -> Tensor:
    """A tensor of an array, which is copied only if torch may not share it."""
    native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(native))


def parts_of(batch: Transitions, count: int) -> list[dict[str, Tensor]]:
    """Transitions in equal parts, one for each gradient step: columns by name."""
    split = {name: tensor(getattr(batch, name)).tensor_split(count) for name in _COLUMNS}
    return [{name: pieces[part] for name, pieces in split.items()} for part in range(count)]
