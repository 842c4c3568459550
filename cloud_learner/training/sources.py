"""Which replay fits a configuration and an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cloud_learner.algorithms.interface import Choice, DataKind
from cloud_learner.config import UNBOUNDED_LAG, LearnerConfig, TrainingConfig
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.lockstep_transitions import LockstepTransitions
from cloud_learner.training.replay import Replay
from cloud_learner.training.roster import FixedRoster, PresentRoster
from cloud_learner.training.source import UNBOUNDED, Source
from cloud_learner.training.transition_replay import Sampling, TransitionReplay
from shoal.errors import ConfigError

ROLLOUT_LAG = 128
ROLLOUT_KL = 0.01
TRANSITIONS_KL = 0.1
ROLLOUT_STEPS = 65_536
TRANSITION_STEPS = 1_000_000


def make_source(
    config: LearnerConfig,
    choice: Choice,
    *,
    version: Callable[[], int],
    cursor: Cursor | None,
    present: Callable[[], Collection[str]] = tuple,
) -> Source:
    """Builds the replay of a learner.

    Args:
        config: Its configuration.
        choice: What it trains.
        version: The newest policy version published.
        cursor: Which journal positions the weights hold already.
        present: The devices that act now.

    Raises:
        ConfigError: Mode, algorithm and sizes do not go together.
    """
    training = config.training
    check_training(training, choice)
    turns, transitions = None, None
    if choice.data == "transitions":
        transitions = TransitionReplay(
            training.replay_steps or TRANSITION_STEPS,
            Sampling.of(choice.settings),
            seed=config.seed,
            cursor=cursor,
            max_bytes=training.replay_bytes,
        )
    if training.waits_for_devices:
        fixed = training.mode == "lockstep"
        turns = Lockstep(
            FixedRoster(training.lockstep_devices) if fixed else PresentRoster(present),
            chunks=training.lockstep_chunks,
            version=version,
            cursor=cursor,
        )
    if turns is not None and transitions is not None:
        return LockstepTransitions(turns, transitions, version=version)
    if turns is not None:
        return turns
    if transitions is not None:
        return transitions
    steps = training.replay_steps or max(ROLLOUT_STEPS, 2 * training.batch_steps)
    return Replay(steps, cursor, batch_steps=training.batch_steps)


def transitions_of(source: Source) -> TransitionReplay | None:
    """The replay of transitions that a source is, or has; None: of rollouts."""
    if isinstance(source, LockstepTransitions):
        return source.transitions
    return source if isinstance(source, TransitionReplay) else None


def turns_of(source: Source) -> Lockstep | None:
    """Where a source waits for devices; None where it does not."""
    if isinstance(source, LockstepTransitions):
        return source.turns
    return source if isinstance(source, Lockstep) else None


def check_training(training: TrainingConfig, choice: Choice) -> None:
    """Refuses a mode or a memory that an algorithm has not.

    Raises:
        ConfigError: The mode is sync or the network has a memory, and the algorithm trains from
            transitions, which are no sequences.
    """
    if training.network.kind in {"lstm", "attention"} and choice.data == "transitions":
        raise ConfigError(
            f"training.network.kind = {training.network.kind!r} remembers, and {choice.path} "
            "trains from single transitions: use kind = 'mlp' or 'cnn', or an algorithm of "
            "rollouts for the memory (APPO or IMPALA)"
        )
    if training.mode == "sync" and choice.data == "transitions":
        raise ConfigError(
            f"training.mode = 'sync' needs an algorithm of rollouts, and {choice.path} trains from "
            "transitions: use mode = 'async' or 'lockstep'"
        )


def lag_bound(training: TrainingConfig, data: DataKind) -> int:
    """Updates that a chunk may be behind."""
    if training.max_lag is None:
        return ROLLOUT_LAG if data == "rollouts" else UNBOUNDED
    return UNBOUNDED if training.max_lag == UNBOUNDED_LAG else training.max_lag


def kl_bound(training: TrainingConfig, data: DataKind) -> float:
    """Nats that the quantization of a policy may cost."""
    if training.kl_quantization_max is None:
        return ROLLOUT_KL if data == "rollouts" else TRANSITIONS_KL
    return training.kl_quantization_max
