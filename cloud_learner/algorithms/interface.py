"""What an algorithm is to the learner: pure functions of a model and a batch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from cloud_learner.config import AppoConfig
from cloud_learner.models.actor_critic import ActorCritic
from cloud_learner.training.replay import Batch
from shoal.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """A batch, prepared: columns of equal length R = T * B that minibatches take rows of.

    Attributes:
        columns: By name, `[R, ...]`.
        metrics: Scalars about the batch as it stood before any update.
    """

    columns: Mapping[str, Tensor]
    metrics: Mapping[str, Tensor]

    @property
    def rows(self) -> int:
        """R."""
        return int(next(iter(self.columns.values())).shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What one minibatch gives.

    Attributes:
        total: The scalar to descend.
        metrics: Scalars without gradients.
    """

    total: Tensor
    metrics: Mapping[str, Tensor]


class Algorithm(Protocol):
    """Turns batches into losses. It holds its configuration and no state."""

    def prepare(self, model: ActorCritic, batch: Batch) -> Targets:
        """Computes, once a batch and without gradients, what every minibatch needs."""

    def loss(self, model: ActorCritic, columns: Mapping[str, Tensor]) -> Loss:
        """The loss of some rows of `Targets.columns`."""

    def review(self, model: ActorCritic, targets: Targets) -> Mapping[str, Tensor]:
        """Scalars about what the updates did to the whole batch, once they are done."""


def load_algorithm(path: str, config: AppoConfig) -> Algorithm:
    """Builds the algorithm a dotted path names: any class that takes the configuration.

    Args:
        path: `module:Class`.
        config: Its hyper-parameters.

    Raises:
        ConfigError: There is no such module or class, or it lacks a method of `Algorithm`.
    """
    module_name, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"training.algorithm = {path!r} cannot be loaded ({error}); name it as module:Class"
        ) from error
    for method in ("prepare", "loss", "review"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(f"training.algorithm = {path!r} has no method {method!r}")
    return cast("Callable[[AppoConfig], Algorithm]", made)(config)
