"""IMPALA: a plain V-trace actor-critic (Espeholt et al. 2018).

It is APPO without its proximal policy: each batch is one update, and nothing is clipped but the
importance weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.appo_settings import AppoSettings
from cloud_learner.algorithms.interface import Setup
from cloud_learner.algorithms.optimiser import OptimiserSettings


@dataclass(frozen=True, slots=True)
class ImpalaSettings(OptimiserSettings):
    """Hyper-parameters of IMPALA; each means what it means in APPO."""

    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0
    gamma: float = 0.99
    trace_lambda: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0
    entropy_coef: float = 0.01
    final_entropy_coef: float | None = None
    value_coef: float = 0.5
    value_loss: str = "mse"
    burn_in: int = 0
    init_critic_updates: int = 500
    reward_scale: float = 1.0
    normalize_rewards: bool = False

    def __post_init__(self) -> None:
        as_appo(self)


def as_appo(settings: ImpalaSettings) -> AppoSettings:
    """The settings of APPO that make it IMPALA.

    Raises:
        ConfigError: One is out of its range.
    """
    given = {name: getattr(settings, name) for name in ImpalaSettings.__dataclass_fields__}
    return AppoSettings(**given, clip=math.inf, epochs=1, minibatches=1, normalize_advantages=False)


class IMPALA(APPO):
    """Trains an actor and a critic, one update a batch.

    >>> IMPALA(Setup(spec, NetworkConfig(), seed=0), IMPALA.Settings()).learn(batch)
    """

    Settings: ClassVar[type[ImpalaSettings]] = ImpalaSettings  # type: ignore[assignment]

    def __init__(self, setup: Setup, settings: ImpalaSettings) -> None:
        """Builds actor and critic.

        Raises:
            ConfigError: The network cannot be built.
        """
        super().__init__(setup, as_appo(settings))
