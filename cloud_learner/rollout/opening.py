"""Puts the rollouts of a learner together, part of its composition root."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.config import LearnerConfig
from cloud_learner.core import Core
from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.rollout.policy_rollout import PolicyRollouts
from cloud_learner.rollout.rollouts import Rollouts
from cloud_learner.rollout.service import RolloutService
from cloud_learner.state_dir import StateDir
from cloud_learner.uplink.admission import KnownVersion


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """What rolls out, and what serves it."""

    rollouts: Rollouts
    service: RolloutService


def open_rollouts(
    config: LearnerConfig, state: StateDir, core: Core, public_key: bytes
) -> RolloutParts:
    """Goes on with the rollouts in progress: from here on devices are held at what they say.

    Args:
        config: The learner's configuration.
        state: Where everything lies.
        core: The learner.
        public_key: Who signs bundles, 32 bytes.

    Raises:
        RolloutError: The disk refuses.
    """
    parts = core.parts
    bundles = BundleStore(
        state.bundles,
        fleet=config.fleet,
        public_key=public_key,
        in_use=lambda: {each.plan.version for each in rollouts.all if not each.state.ended},
    )
    rollouts = Rollouts(
        core.rollouts,
        parts.fleet,
        PolicyRollouts(
            parts.policy_log,
            parts.parameter_server,
            note=lambda each: parts.versions.add(each.version, KnownVersion.of(each.manifest)),
        ),
        bundles,
        policies_refused=_why_not(config),
        trains_from=core.trainer.trains_from,
    )
    service = RolloutService(
        rollouts, bundles, parts.policy_log, fleet=config.fleet, counters=parts.counters
    )
    return RolloutParts(rollouts, service)


def _why_not(config: LearnerConfig) -> str:
    training = config.training
    if training.waits_for_devices:
        return (
            f'this learner trains in the mode "{training.mode}", in which every device acts with '
            'the newest policy: a policy can be rolled out with training.mode = "async"'
        )
    return ""
