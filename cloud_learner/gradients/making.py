"""What the composition root makes of a configuration for the mode `gradients`, or refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cloud_learner.algorithms.interface import Choice
from cloud_learner.config import LearnerConfig, TrainingConfig
from cloud_learner.gradients.live import Live
from cloud_learner.gradients.source import GradientSource
from cloud_learner.gradients.tally import Tally
from cloud_learner.serving.grpc_server import MAX_REQUEST_BYTES
from cloud_learner.training.brain import Brain
from cloud_learner.training.cursor import Cursor
from cloud_learner.uplink.admission import Standard
from shoal.errors import ConfigError
from shoal.observation_statistics import MAX_NUMBERS

_ELSEWHERE: Final = ("learning_rate", "final_learning_rate", "anneal_updates", "adam_eps")
ROOM_BYTES: Final = 65_536
"""Of a request, beyond its gradient: episodes, moments, names."""
_STATISTICS_BYTES: Final = 16
"""A number's mean and its squares."""
_REFUSED: Final = (
    'this learner takes gradients, and the device sent trajectories: set its mode = "gradients", '
    'or training.mode = "async" here'
)


def check_gradients(training: TrainingConfig, choice: Choice) -> None:
    """Refuses by name what the mode `gradients` has not; nothing in other modes.

    Raises:
        ConfigError: A key asks for what only a learner that sees the observations can do, or lies
            under `[gradients]` in this mode.
    """
    if training.mode != "gradients":
        return
    if choice.data != "rollouts":
        raise ConfigError(
            f"training.mode = 'gradients' needs an algorithm of rollouts, and {choice.path} trains "
            "from transitions: use APPO or IMPALA, or mode = 'async'"
        )
    if training.network.quantization_aware:
        raise ConfigError(
            "training.network.quantization_aware = true needs the published ranges where gradients "
            "are computed, and devices have none in training.mode = 'gradients': leave it out"
        )
    if getattr(choice.settings, "normalize_rewards", False):
        raise ConfigError(
            "training.settings.normalize_rewards = true needs all rewards in one place, and they "
            "stay on the devices in training.mode = 'gradients': use reward_scale"
        )
    for key in _ELSEWHERE:
        if key in training.settings:
            raise ConfigError(
                f"training.settings.{key} is of no use where training.mode = 'gradients': set "
                f"gradients.{key}, whose optimisers step"
            )
    if "max_grad_norm" in training.settings:
        raise ConfigError(
            "training.settings.max_grad_norm is of no use where training.mode = 'gradients': set "
            "gradients.clip_norm, and gradients.max_norm over which a gradient is refused"
        )
    if training.max_lag is not None:
        raise ConfigError(
            "training.max_lag is of chunks, and none come where training.mode = 'gradients': set "
            "gradients.max_lag"
        )


def make_gradient_source(
    config: LearnerConfig, counters: Counter[str], cursor: Cursor | None
) -> GradientSource | None:
    """The source of a learner in this mode; None in any other."""
    if config.training.mode != "gradients":
        return None
    return GradientSource(
        Tally(counters),
        interval=config.training.publish_interval,
        cursor=cursor,
        seed=config.seed,
    )


def live_of(brain: Brain, config: LearnerConfig) -> Live:
    """The weights that gradients change.

    Raises:
        ConfigError: Devices cannot compute the gradients of this algorithm, tell of so many
            numbers, or a gradient would be larger than what is read.
    """
    live = Live.of(brain, config.gradients)
    normalizer = brain.learner.policy.normalizer
    numbers = 0 if normalizer is None else normalizer.numbers
    if numbers > MAX_NUMBERS:
        raise ConfigError(
            f"training.network.normalize = true where training.mode = 'gradients': observations of "
            f"{numbers} numbers are too large for devices to tell of, {MAX_NUMBERS} at most: leave "
            "it out, and scale in the environment"
        )
    needed = 4 * live.parameters + ROOM_BYTES + _STATISTICS_BYTES * numbers
    if needed > config.gradients.max_update_bytes:
        raise ConfigError(
            f"gradients.max_update_bytes = {config.gradients.max_update_bytes} is too few for the "
            f"{live.parameters} parameters of this network: set it to {needed} or more"
        )
    return live


def standard_of(
    standard: Callable[[], Standard | None], training: TrainingConfig
) -> Callable[[], Standard | None]:
    """What chunks are held against: in this mode every one is refused, and says why."""
    if training.mode != "gradients":
        return standard

    def refusing() -> Standard | None:
        now = standard()
        return None if now is None else replace(now, refuses=_REFUSED)

    return refusing


def max_request_bytes(config: LearnerConfig) -> int:
    """The largest gRPC request that is read."""
    if config.training.mode != "gradients":
        return MAX_REQUEST_BYTES
    return config.gradients.max_update_bytes
