"""`[gradients]`: how pushed gradients are applied, where `training.mode = "gradients"`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from shoal.errors import ConfigError

MAX_SHARDS: Final = 256
MAX_UPDATE_BYTES: Final = 4_194_304
"""Of a request, unless `max_update_bytes` says otherwise."""
_MIN_UPDATE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class GradientsConfig:
    """How gradients of devices change the weights; ``[gradients]``.

    ``shards`` parts of the parameters have an ``optimiser`` each, ``adam`` or ``sgd`` with
    ``momentum``. The learning rate goes linearly to ``final_learning_rate`` in ``anneal_updates``
    updates (0: it is constant). A gradient whose norm is over ``clip_norm`` is shortened to it; one
    over ``max_norm`` is refused, as is one that is more than ``max_lag`` updates behind. What is
    behind steps less far: the learning rate is multiplied by (1 + lag)^-``lag_scaling``; 0 takes
    no heed of the lag. ``threads``: ``auto`` applies small gradients where they arrive and large
    ones in a thread for each shard; ``always`` and ``never`` decide. A request of more than
    ``max_update_bytes`` is not read: a parser takes many times what it is given.

    ``training.publish_interval`` counts updates between two policies as ever, 16 if it is 0.
    """

    shards: int = 1
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    anneal_updates: int = 0
    momentum: float = 0.9
    adam_eps: float = 1e-5
    clip_norm: float = 0.5
    max_norm: float = 1e4
    max_lag: int = 256
    lag_scaling: float = 0.5
    threads: Literal["auto", "always", "never"] = "auto"
    max_update_bytes: int = MAX_UPDATE_BYTES

    def __post_init__(self) -> None:
        _require(1 <= self.shards <= MAX_SHARDS, "shards", self.shards, f"1 to {MAX_SHARDS}")
        for key in ("learning_rate", "adam_eps", "clip_norm", "max_norm"):
            value: float = getattr(self, key)
            _require(value > 0.0, key, value, "more than 0")
        final = self.final_learning_rate
        _require(
            final is None or 0.0 <= final < math.inf, "final_learning_rate", final, "0 or more"
        )
        _require(
            self.anneal_updates >= 0, "anneal_updates", self.anneal_updates, "0 (constant) or more"
        )
        _require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "0 to less than 1")
        _require(self.max_lag >= 0, "max_lag", self.max_lag, "0 or more updates")
        _require(
            0.0 <= self.lag_scaling < math.inf, "lag_scaling", self.lag_scaling, "0 (none) or more"
        )
        _require(
            self.max_update_bytes >= _MIN_UPDATE_BYTES,
            "max_update_bytes",
            self.max_update_bytes,
            f"{_MIN_UPDATE_BYTES} or more",
        )


def _require(ok: bool, key: str, value: object, allowed: str) -> None:  # noqa: FBT001 - a guard
    if not ok:
        raise ConfigError(f"{key} = {value!r} is out of range: use {allowed}")
