"""Training settings of the demo for environments that were tried; others get the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

Tables = Mapping[str, Mapping[str, object]]

# 32 environments (4 devices of 8), chunks of 32 steps, 2 chunks a device and version: a batch is
# what the fleet makes under one version, so the lag stays near zero on one machine.
_CARTPOLE: Final[Tables] = MappingProxyType(
    {
        "training.appo": {"clip": 0.2, "entropy_coef": 0.0, "value_loss": "mse"},
        "training.optimiser": {
            "learning_rate": 6e-3,
            "final_learning_rate": 6e-4,
            "anneal_updates": 600,
            "epochs": 3,
            "minibatches": 4,
        },
    }
)
PRESETS: Final[Mapping[str, Tables]] = MappingProxyType({"CartPole-v1": _CARTPOLE})


def training_tables(
    env_id: str, *, envs_in_fleet: int, chunk_steps: int, ahead: int
) -> dict[str, dict[str, object]]:
    """The tables `[training]`, `[training.appo]` and `[training.optimiser]` of a learner's TOML.

    Args:
        env_id: What is trained.
        envs_in_fleet: Environments on all devices together.
        chunk_steps: Steps in a chunk, T.
        ahead: Chunks a device records under one version.
    """
    batch_steps = envs_in_fleet * chunk_steps * ahead
    tables: dict[str, dict[str, object]] = {"training": {"batch_steps": batch_steps}}
    tables |= {name: dict(values) for name, values in PRESETS.get(env_id, {}).items()}
    return tables
