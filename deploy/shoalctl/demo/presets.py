"""Settings of the demo for environments that were tried; others get the defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from shoal.errors import ConfigError

Tables = Mapping[str, Mapping[str, object]]

ALGORITHMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "appo": "cloud_learner.algorithms.appo:APPO",
        "impala": "cloud_learner.algorithms.impala:IMPALA",
        "sac": "cloud_learner.algorithms.sac:SAC",
        "dqn": "cloud_learner.algorithms.dqn:DQN",
    }
)
"""The algorithms that come with Shoal, by their short names."""
DEFAULT_ALGORITHM: Final = "appo"


@dataclass(frozen=True, slots=True)
class Preset:
    """What a demo of one environment and one algorithm is made of.

    Attributes:
        training: The tables `[training]`, `[training.network]` and `[training.settings]` of the
            learner, without what follows from the rest.
        devices: Device processes.
        envs: Environments a device steps.
        chunk_steps: Steps in a chunk, T.
        ahead: Chunks an actor records under one policy version before it waits for the next; 0: it
            never waits.
        pace_timeout_s: How long that wait may last.
        gradients: The table `[gradients]` of devices, where those push gradients.
    """

    training: Tables = field(default_factory=dict)
    devices: int = 4
    envs: int = 8
    chunk_steps: int = 32
    ahead: int = 2
    pace_timeout_s: float = 1.0
    gradients: Mapping[str, object] = field(default_factory=dict)


# 32 environments (4 devices of 8), chunks of 32 steps, 2 chunks a device and version: a batch is
# what the fleet makes under one version, so the lag stays near zero on one machine.
_CARTPOLE_APPO: Final = Preset(
    {
        "training.settings": {
            "clip": 0.2,
            "entropy_coef": 0.0,
            "value_loss": "mse",
            "learning_rate": 6e-3,
            "final_learning_rate": 6e-4,
            "anneal_updates": 600,
            "epochs": 3,
            "minibatches": 4,
        },
    }
)
# One update a batch, so batches are small: 8 environments, 16 steps.
_CARTPOLE_IMPALA: Final = Preset(
    {
        "training.settings": {
            "learning_rate": 2e-3,
            "final_learning_rate": 4e-4,
            "anneal_updates": 3000,
            "trace_lambda": 0.95,
            "reward_scale": 0.1,
        },
    },
    envs=2,
    chunk_steps=16,
    ahead=1,
    pace_timeout_s=5.0,
)
_ACROBOT_APPO: Final = Preset(
    {
        "training.network": {"normalize": True},
        "training.settings": {
            "entropy_coef": 0.005,
            "learning_rate": 3e-3,
            "final_learning_rate": 3e-4,
            "anneal_updates": 1500,
            "epochs": 4,
            "minibatches": 4,
        },
    }
)
_POSITIONS_APPO: Final = Preset(
    {
        "training.network": {"kind": "lstm", "hidden": [64], "memory": 64},
        "training.settings": {
            "entropy_coef": 0.0,
            "value_loss": "mse",
            "learning_rate": 2e-3,
            "final_learning_rate": 2e-4,
            "anneal_updates": 3000,
            "epochs": 3,
            "minibatches": 8,
        },
    },
    pace_timeout_s=10.0,
)
_PIXELS_APPO: Final = Preset(
    {
        "training.network": {"kind": "cnn", "filters": 8, "hidden": [128]},
        "training.settings": {
            "entropy_coef": 0.005,
            "learning_rate": 1e-3,
            "final_learning_rate": 2e-4,
            "anneal_updates": 2000,
            "epochs": 2,
            "minibatches": 8,
        },
    },
    chunk_steps=16,
    pace_timeout_s=60.0,  # a batch of pictures takes seconds
)
_LANDER_APPO: Final = Preset(
    {
        "training.network": {"normalize": True},
        "training.settings": {
            "gamma": 0.999,
            "trace_lambda": 0.98,
            "entropy_coef": 0.01,
            "final_entropy_coef": 0.0,
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-4,
            "anneal_updates": 8000,
            "epochs": 4,
            "minibatches": 16,
        },
    },
    chunk_steps=64,
    ahead=2,
    pace_timeout_s=10.0,
)


def _in_turns(
    devices: int, updates: int, settings: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Tables of an off-policy algorithm.

    It learns from each chunk with so many updates, and publishes when it has learned from as many
    chunks as there are devices, or has no more.
    """
    return {
        "training": {"publish_interval": devices * updates},
        "training.settings": {"gradient_steps": updates, **settings},
    }


# Off policy, a fleet must not run far ahead of its learner, or most of it is explored with the
# first policy. So a device waits after each chunk, and the learner publishes when it has learned
# from what all devices brought: `updates` is what one chunk of each pays for.
_CARTPOLE_DQN: Final = Preset(
    _in_turns(
        4,
        32,
        {
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-4,
            "anneal_updates": 40_000,
            "learning_starts": 1000,
            "updates_per_transition": 0.5,
            "epsilon_final": 0.02,
        },
    )
    # Where actions are worth nearly the same, rounding decides: so it is trained in.
    | {"training.network": {"quantization_aware": True}},
    devices=4,
    envs=2,
    chunk_steps=32,
    ahead=1,
    pace_timeout_s=5.0,
)
_PENDULUM_SAC: Final = Preset(
    _in_turns(
        4,
        32,
        {
            "learning_rate": 1e-3,
            "batch_size": 256,
            "tau": 0.005,
            "gamma": 0.99,
            "learning_starts": 100,
            "updates_per_transition": 1.0,
        },
    )
    # Its actions spread little in the end, so that the least rounding is many nats.
    | {"training.network": {"quantization_aware": True}},
    devices=4,
    envs=1,
    chunk_steps=32,
    ahead=1,
    pace_timeout_s=5.0,
)
_MOUNTAIN_CAR_SAC: Final = Preset(
    _in_turns(
        4,
        16,
        {
            "learning_rate": 3e-4,
            "batch_size": 512,
            "tau": 0.01,
            "gamma": 0.9999,
            "learning_starts": 1000,
            "updates_per_transition": 1.0,
            "temperature": 0.1,
            "tune_temperature": False,
            "noise_correlation": 0.95,
        },
    )
    | {"training.network": {"quantization_aware": True}},
    devices=4,
    envs=1,
    chunk_steps=16,
    ahead=1,
    pace_timeout_s=5.0,
)
_LANDER_SAC: Final = Preset(
    {
        "training": {"publish_interval": 128},
        "training.network": {"hidden": [128, 128], "quantization_aware": True},
        "training.settings": {
            "gradient_steps": 32,
            "learning_rate": 7.3e-4,
            "final_learning_rate": 1e-4,
            "anneal_updates": 150_000,
            "batch_size": 128,
            "tau": 0.01,
            # With 0.99, to hover until the time is up costs less than to land badly, and is what is
            # learned. Over the longer horizon returns of 3 steps make values known sooner.
            "gamma": 0.995,
            "n_step": 3,
            "learning_starts": 8000,
            "updates_per_transition": 0.5,
            # More exploration than usual.
            "target_entropy": -1.0,
            "noise_correlation": 0.5,
        },
    },
    devices=4,
    envs=1,
    chunk_steps=64,
    ahead=1,
    pace_timeout_s=5.0,
)
# Devices push gradients: 4 devices of 8, a chunk of 256 transitions gives 4 gradients, and a policy
# is published when each device pushed those of one chunk.
_CARTPOLE_GRADIENTS: Final = Preset(
    {
        "training": {"publish_interval": 16},
        "training.settings": {"clip": 0.2, "entropy_coef": 0.0, "value_loss": "mse"},
        "gradients": {
            "learning_rate": 5e-3,
            "final_learning_rate": 5e-4,
            "anneal_updates": 1500,
        },
    },
    gradients={"update_interval": 64, "passes": 4, "queue_chunks": 1},
    ahead=1,
)
PIXELS: Final = "examples.cartpole_pixels:CartPolePixels"
POSITIONS: Final = "examples.cartpole_positions:CartPolePositions"

# The first algorithm of an environment is its default.
PRESETS: Final[Mapping[tuple[str, str], Preset]] = MappingProxyType(
    {
        ("CartPole-v1", "appo"): _CARTPOLE_APPO,
        ("CartPole-v1", "dqn"): _CARTPOLE_DQN,
        ("CartPole-v1", "impala"): _CARTPOLE_IMPALA,
        ("Acrobot-v1", "appo"): _ACROBOT_APPO,
        ("Pendulum-v1", "sac"): _PENDULUM_SAC,
        ("MountainCarContinuous-v0", "sac"): _MOUNTAIN_CAR_SAC,
        ("LunarLander-v3", "appo"): _LANDER_APPO,
        ("LunarLanderContinuous-v3", "sac"): _LANDER_SAC,
        (POSITIONS, "appo"): _POSITIONS_APPO,
        (PIXELS, "appo"): _PIXELS_APPO,
    }
)
GRADIENT_PRESETS: Final[Mapping[tuple[str, str], Preset]] = MappingProxyType(
    {("CartPole-v1", "appo"): _CARTPOLE_GRADIENTS}
)
"""The same for devices that push gradients; the default is that of CartPole-v1."""
_OTHERS: Final[Mapping[str, Preset]] = MappingProxyType(
    {"sac": _PENDULUM_SAC, "dqn": _CARTPOLE_DQN}
)
"""What an algorithm begins with in an environment that was not tried."""


def default_algorithm(env_id: str) -> str:
    """The short name of the algorithm that a demo of an environment trains with."""
    return next((algorithm for env, algorithm in PRESETS if env == env_id), DEFAULT_ALGORITHM)


def preset_of(env_id: str, algorithm: str, *, gradients: bool = False) -> Preset:
    """The settings of an environment and an algorithm, for the mode `gradients` or any other."""
    if gradients:
        return GRADIENT_PRESETS.get((env_id, algorithm)) or replace(
            _CARTPOLE_GRADIENTS, training={}
        )
    return PRESETS.get((env_id, algorithm)) or _OTHERS.get(algorithm) or Preset()


def algorithm_path(name: str) -> str:
    """The dotted path of an algorithm by its short name; a path stays as it is.

    Raises:
        ConfigError: It is neither.
    """
    if ":" in name:
        return name
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    close = difflib.get_close_matches(name, ALGORITHMS, 1, 0.5)
    hint = f"did you mean {close[0]}? Or" if close else f"use {', '.join(ALGORITHMS)}, or"
    raise ConfigError(f"--algorithm {name}: {hint} name your own as module:Class")


def training_tables(
    preset: Preset, algorithm: str, *, envs_in_fleet: int, chunk_steps: int, ahead: int
) -> dict[str, dict[str, object]]:
    """The tables `[training]`, `[training.network]` and `[training.settings]` of a learner's TOML.

    Args:
        preset: What they begin with.
        algorithm: Its short name or dotted path.
        envs_in_fleet: Environments on all devices together.
        chunk_steps: Steps in a chunk, T.
        ahead: Chunks a device records under one version; 0 counts as one.
    """
    tables = {name: dict(values) for name, values in preset.training.items()}
    return {
        "training": {
            "algorithm": algorithm_path(algorithm),
            "batch_steps": envs_in_fleet * chunk_steps * max(1, ahead),
            **tables.pop("training", {}),
        },
        **tables,
    }
