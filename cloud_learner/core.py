"""A learner without its network: what lies in its state directory, and what is built on it."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import LearnerConfig
from cloud_learner.downlink.active_policies import ActivePolicies
from cloud_learner.downlink.log_directory import bundle_versions
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.pins import Pins
from cloud_learner.downlink.signing import HeldDelegation
from cloud_learner.downlink.version_jumps import VersionJumps
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.gradients.making import check_gradients, live_of, make_gradient_source
from cloud_learner.gradients.service import GradientService
from cloud_learner.gradients.source import stats_of
from cloud_learner.journal.reoffer import refill
from cloud_learner.rollout.store import RolloutStore
from cloud_learner.state_dir import StateDir
from cloud_learner.stored import Stored
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import CheckpointStore, check_recipe
from cloud_learner.training.metrics import Metrics
from cloud_learner.training.publisher import Publisher, PublisherParts
from cloud_learner.training.saver import Saver
from cloud_learner.training.sources import lag_bound, make_source, transitions_of
from cloud_learner.training.start import build_brain, init_of
from cloud_learner.training.trainer import Trainer, TrainerParts
from shoal.spaces import EnvSpec


@dataclass(frozen=True, slots=True)
class Core:
    """Everything of a learner but its network.

    Attributes:
        parts: What the trainer works on.
        trainer: Trains.
        active: What devices act with.
        rollouts: Where rollouts are kept.
        pins: The policy versions that no retention deletes.
        restored: What a checkpoint held; None to wait for the first device.
    """

    parts: TrainerParts
    trainer: Trainer
    active: ActivePolicies
    rollouts: RolloutStore
    pins: Pins
    restored: Brain | None


def open_core(
    config: LearnerConfig,
    state: StateDir,
    signing_key: Ed25519PrivateKey,
    stack: AsyncExitStack,
    *,
    rng: random.Random,
    held_delegation: HeldDelegation | None = None,
) -> Core:
    """Opens what lies in the state directory and builds on it.

    Args:
        config: The learner's configuration.
        state: Where everything lies.
        signing_key: Signs policies.
        stack: Closes what is opened here.
        rng: For the jitter of retries.
        held_delegation: By whose leave the key signs; None: it is the policy key itself.

    Raises:
        ShoalError: Something on disk is damaged or in use, or the configuration does not fit it.
    """
    choice = load_algorithm(config.training.algorithm, config.training.settings)
    check_gradients(config.training, choice)
    checkpoints = CheckpointStore(state.checkpoints)
    checkpoint = checkpoints.newest()
    if checkpoint is not None:
        check_recipe(checkpoint, Recipe.of(choice, config.training.network))
    init = init_of(config, choice, state if checkpoint is not None else None)
    rollouts = stack.enter_context(RolloutStore(state.rollouts))
    rollouts.load()
    pins = Pins(state.pins, present=lambda: _present(state.policies))
    stored = Stored.open(
        config,
        state,
        signing_key,
        stack,
        checkpoints=checkpoints,
        checkpoint=checkpoint,
        pinned=lambda: rollouts.pinned() | pins.kept(),
        held=held_delegation,
    )
    counters: Counter[str] = Counter()
    metrics = stack.enter_context(
        Metrics(state.tensorboard, enabled=config.tensorboard, counters=counters)
    )
    versions, stats, cursor = stored.versions(), stored.stats(), stored.cursor()
    replay = (gradients := make_gradient_source(config, counters, cursor)) or make_source(
        config,
        choice,
        version=lambda: versions.highest,
        cursor=cursor,
        present=lambda: fleet.present(),  # noqa: PLW0108 - the fleet is made below
    )
    transitions = transitions_of(replay)
    if checkpoint is not None and transitions is not None:
        transitions.fit(checkpoint.spec)
        held = refill(stored.journal, transitions.held(checkpoint.source))
        transitions.load_state_dict(checkpoint.source, held)
    if gradients is not None and checkpoint is not None:
        stats = stats_of(checkpoint.source, stats)
    jumps = VersionJumps(highest=lambda: stored.policy_log.highest_version, wake=replay.wake)
    facts = LearnerFacts(
        decided=stored.journal.decided,
        updates=lambda: trainer.updates,
        updates_of=stored.policy_log.updates_of,
        replay_steps=lambda: replay.steps,
        counters=counters,
        note_version=jumps.note,
        gradients_of=gradients.tally.of if gradients is not None else lambda _: {},
    )
    fleet = Fleet(facts, stats, reports=stored.journal.reports())
    service = None
    if gradients is not None:
        service = GradientService(
            gradients,
            stats,
            fleet,
            config.gradients,
            fleet=config.fleet,
            newest_version=lambda: versions.highest,
        )
    parameter_server = ParameterServer(
        stored.policy_log,
        fleet=config.fleet,
        note_version=jumps.note,
        active=stored.active,
        gradients=service,
    )
    parts = TrainerParts(
        journal=stored.journal,
        replay=replay,
        fleet=fleet,
        stats=stats,
        counters=counters,
        versions=versions,
        policy_log=stored.policy_log,
        parameter_server=parameter_server,
        publisher=Publisher(
            PublisherParts(
                stored.policy_log, parameter_server, versions, jumps, fleet, stats, counters
            ),
            config.training,
            data=choice.data,
            note_published=(lambda _: None) if gradients is None else gradients.note_published,
        ),
        jumps=jumps,
        saver=Saver(stored.journal, replay, fleet, versions, stored.checkpoints, counters),
        metrics=metrics,
    )
    past = stored.past()

    def build(spec: EnvSpec) -> Brain:
        brain = build_brain(spec, config, choice, init)
        if transitions is not None:
            transitions.fit(spec)
        if gradients is not None:
            gradients.attach(brain, live_of(brain, config), stats)
        return brain

    trainer = Trainer(
        config,
        parts,
        build=build,
        max_lag=lag_bound(config.training, choice.data),
        past=past,
        rng=rng,
    )
    restored = None
    if checkpoint is not None:
        restored = build_brain(checkpoint.spec, config, choice)
        restored.learner.load_state_dict(checkpoint.learner)
        restored.learner.resume_at(past.updates if past is not None else 0)
        restored.quantizer.load_state_dict(checkpoint.quantizer)
        if gradients is not None:
            gradients.attach(restored, live_of(restored, config), stats)
            gradients.load_state_dict(checkpoint.source)
    return Core(parts, trainer, stored.active, rollouts, pins, restored)


def _present(policies: Path) -> list[int]:
    """The versions that a policy log has on disk, before it is opened."""
    try:
        return bundle_versions(policies)
    except OSError:  # there is none yet; whatever else it is, opening the log says so
        return []
