"""The learner's composition root: everything is built here, and only here."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.algorithms.interface import Choice, Setup, load_algorithm
from cloud_learner.config import LearnerConfig
from cloud_learner.dispatch.config import specs_of
from cloud_learner.dispatch.service import DispatchService
from cloud_learner.dispatch.store import TaskStore
from cloud_learner.dispatch.tasks import TaskQueue
from cloud_learner.downlink.active_policies import ActivePolicies
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.signing import load_signing_key
from cloud_learner.downlink.version_jumps import VersionJumps
from cloud_learner.fleet.fleet import Fleet, LearnerFacts
from cloud_learner.fleet.service import FleetService
from cloud_learner.gradients.making import (
    check_gradients,
    live_of,
    make_gradient_source,
    max_request_bytes,
    standard_of,
)
from cloud_learner.gradients.service import GradientService
from cloud_learner.gradients.source import stats_of
from cloud_learner.grpc_server import GrpcServer, Service
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.reoffer import last_episodes, last_fingerprint, refill
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.revocations import Revocations
from cloud_learner.state_dir import StateDir
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import CheckpointStore
from cloud_learner.training.init_file import InitFile
from cloud_learner.training.learner import Learner
from cloud_learner.training.lockstep import Lockstep
from cloud_learner.training.lockstep_watch import watch_lockstep
from cloud_learner.training.metrics import Metrics
from cloud_learner.training.publisher import Publisher, PublisherParts
from cloud_learner.training.saver import Saver
from cloud_learner.training.sources import kl_bound, lag_bound, make_source
from cloud_learner.training.stats import Progress, TrainingStats
from cloud_learner.training.sync_watch import watch_sync
from cloud_learner.training.trainer import Past, Trainer, TrainerParts
from cloud_learner.training.transition_replay import TransitionReplay
from cloud_learner.uplink.admission import KnownVersion, KnownVersions
from cloud_learner.uplink.appetite import Reading
from cloud_learner.uplink.appetite_broadcast import AppetiteBroadcast
from cloud_learner.uplink.inbox import Inbox
from cloud_learner.uplink.ingest import Ingest, IngestParts
from cloud_learner.uplink.session_watch import watch_session
from cloud_learner.uplink.subscriber import Subscriber
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.services import run_services
from shoal.spaces import EnvSpec
from shoal.topics import Topics

_log = get_logger("app")


@dataclass(frozen=True, slots=True)
class Core:
    """Everything of a learner but its network.

    Attributes:
        parts: What the trainer works on.
        trainer: Trains.
        active: What devices act with.
        restored: What a checkpoint held; None to wait for the first device.
    """

    parts: TrainerParts
    trainer: Trainer
    active: ActivePolicies
    restored: Brain | None


async def run(config: LearnerConfig, *, resume: bool) -> None:
    """Runs the learner until it is stopped.

    Args:
        config: Its configuration.
        resume: Whether to go on with what lies in `state_dir`; when nothing does, it starts anew.

    Raises:
        ShoalError: Something it cannot run without is missing, wrong or taken.
    """
    torch.set_num_threads(config.training.threads)
    topics = Topics(config.fleet)
    identity = Identity.load(config.identity)
    signing_key = load_signing_key(identity)
    state = StateDir.open(config.state_dir, resume=resume)
    rng = random.Random()
    async with AsyncExitStack() as stack:
        core = open_core(config, state, signing_key, stack, rng=rng)
        parts, trainer = core.parts, core.trainer
        inbox = Inbox.of(config.ingest.max_queued_messages)
        subscriber = Subscriber(config.broker, identity, topics, inbox, rng=rng)
        ingest = Ingest(
            IngestParts(
                inbox, parts.journal, parts.replay, parts.fleet, parts.stats, parts.counters
            ),
            config.ingest,
            standard=standard_of(trainer.standard, config.training),
            publish_ack=lambda device_id, ack: subscriber.publish(topics.ack(device_id), ack),
            rng=rng,
        )
        appetite = AppetiteBroadcast(
            config.appetite,
            read=lambda: Reading(time.monotonic(), parts.replay.backlog, parts.stats.env_steps),
            oldest_version=trainer.oldest_version,
            present=parts.fleet.present,
            publish=lambda device_id, told: subscriber.publish(topics.appetite(device_id), told),
        )
        dispatch = open_dispatch(config, state, parts.fleet, stack)
        fleet_service = FleetService(
            parts.fleet,
            parts.policy_log,
            parts.parameter_server,
            fleet=config.fleet,
            task_of=dispatch.task_of,
        )
        services: list[Service] = [parts.parameter_server, fleet_service, dispatch]
        revocations = Revocations(config.server.revocation_list, identity, counters=parts.counters)
        server = await stack.enter_async_context(
            GrpcServer(
                config.server.host,
                config.server.port,
                identity,
                services,
                max_request_bytes=max_request_bytes(config),
                interceptors=revocations.interceptors,
            )
        )
        running: dict[str, Callable[[], Awaitable[None]]] = {
            "subscriber": subscriber.serve,
            "reports": ingest.serve_reports,
            "chunks": ingest.serve_chunks,
            "commits": ingest.serve_commits,
            "acks": ingest.repeat_acks,
            "appetite": appetite.serve,
            "trainer": lambda: trainer.serve(core.restored),
            "dispatch": dispatch.serve,
            "grpc": server.serve,
            "active": core.active.save_often,
            "revocations": revocations.follow,
        }
        if config.training.mode != "gradients":  # where no chunks are expected
            running["session"] = lambda: watch_session(
                subscriber, ingest, parts.fleet, after_s=config.broker.session_renewal_s
            )
        if isinstance(parts.replay, Lockstep):
            lockstep = parts.replay
            fixed = config.training.mode == "lockstep"
            watch = watch_lockstep if fixed else watch_sync
            running[config.training.mode] = lambda: watch(lockstep, parts.fleet)
        await run_services(running)


def open_dispatch(
    config: LearnerConfig, state: StateDir, fleet: Fleet, stack: AsyncExitStack
) -> DispatchService:
    """Opens the tasks that are configured, with what became of them; there may be none.

    Raises:
        ConfigError: Two tasks have one name, or there are too many.
        TaskStoreError: The disk refuses.
    """
    store = stack.enter_context(TaskStore(state.tasks))
    tasks = store.load(specs_of(config.tasks), time.monotonic())
    queue = TaskQueue(tasks, config.dispatch.limits)
    return DispatchService(queue, store, fleet, fleet=config.fleet)


def open_core(
    config: LearnerConfig,
    state: StateDir,
    signing_key: Ed25519PrivateKey,
    stack: AsyncExitStack,
    *,
    rng: random.Random,
) -> Core:
    """Opens what lies in the state directory and builds on it.

    Args:
        config: The learner's configuration.
        state: Where everything lies.
        signing_key: Signs policies.
        stack: Closes what is opened here.
        rng: For the jitter of retries.

    Raises:
        ShoalError: Something on disk is damaged or in use, or the configuration does not fit it.
    """
    choice = load_algorithm(config.training.algorithm, config.training.settings)
    check_gradients(config.training, choice)
    checkpoints = CheckpointStore(state.checkpoints)
    checkpoint = checkpoints.newest()
    init = _init_of(config, choice, state if checkpoint is not None else None)
    saved_version = checkpoint.version if checkpoint is not None else 0
    active = ActivePolicies(state.active)
    policy_log = stack.enter_context(
        PolicyLog(
            state.policies,
            signing_key,
            config.fleet,
            keep=config.policies_kept,
            after_version=max(saved_version, config.policies_after_version),
            in_use=active.versions,
        )
    )
    newest = policy_log.newest()
    journal = stack.enter_context(Journal(state.journal, config.journal))
    counters: Counter[str] = Counter()
    metrics = stack.enter_context(
        Metrics(state.tensorboard, enabled=config.tensorboard, counters=counters)
    )
    versions = KnownVersions(policy_log.updates_of, highest=policy_log.highest_version)
    cursor = checkpoint.cursor.upto(journal.last_position) if checkpoint is not None else None
    replay = (gradients := make_gradient_source(config, counters, cursor)) or make_source(
        config,
        choice,
        version=lambda: versions.highest,
        cursor=cursor,
        present=lambda: fleet.present(),  # noqa: PLW0108 - the fleet is made below
    )
    if checkpoint is not None and isinstance(replay, TransitionReplay):
        replay.load_state_dict(checkpoint.source, refill(journal, replay.held(checkpoint.source)))
    jumps = VersionJumps(highest=lambda: policy_log.highest_version, wake=replay.wake)
    stats = _stats_of(journal)
    if gradients is not None and checkpoint is not None:
        stats = stats_of(checkpoint.source, stats)
    for info in policy_log.list():
        known = KnownVersion.of(info.manifest)
        versions.add(info.manifest.version, known)
    facts = LearnerFacts(
        decided=journal.decided,
        updates=lambda: trainer.updates,
        updates_of=policy_log.updates_of,
        replay_steps=lambda: replay.steps,
        counters=counters,
        note_version=jumps.note,
        gradients_of=gradients.tally.of if gradients is not None else lambda _: {},
    )
    fleet = Fleet(facts, stats, reports=journal.reports())
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
        policy_log,
        fleet=config.fleet,
        note_version=jumps.note,
        active=active,
        gradients=service,
    )
    parts = TrainerParts(
        journal=journal,
        replay=replay,
        fleet=fleet,
        stats=stats,
        counters=counters,
        versions=versions,
        policy_log=policy_log,
        parameter_server=parameter_server,
        publisher=Publisher(
            PublisherParts(policy_log, parameter_server, versions, jumps, fleet, stats, counters),
            config.training,
            data=choice.data,
        ),
        jumps=jumps,
        saver=Saver(journal, replay, fleet, versions, checkpoints, counters),
        metrics=metrics,
    )
    past = _past_of(policy_log, newest, journal)

    def build(spec: EnvSpec) -> Brain:
        brain = build_brain(spec, config, choice, init)
        if gradients is not None:
            gradients.attach(brain, live_of(brain, config, choice), stats)
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
            gradients.attach(restored, live_of(restored, config, choice), stats)
            gradients.load_state_dict(checkpoint.source)
    return Core(parts, trainer, active, restored)


def _past_of(policy_log: PolicyLog, newest: Published | None, journal: Journal) -> Past | None:
    """What is known of earlier training though its weights may be lost."""
    if newest is not None:
        return Past(newest.manifest.spec_fingerprint, newest.manifest.updates)
    fingerprint = last_fingerprint(journal)
    if fingerprint is None:
        return None
    return Past(fingerprint, policy_log.updates_of(policy_log.highest_version) or 0)


def _stats_of(journal: Journal) -> TrainingStats:
    totals = journal.totals
    stats = TrainingStats(Progress(totals.transitions, totals.episodes, totals.body_bytes))
    stats.restore_window(last_episodes(journal))
    return stats


def read_init(config: LearnerConfig, choice: Choice) -> InitFile | None:
    """The file that training starts from, if there is one, checked against the configuration.

    Raises:
        ConfigError: It cannot be used. What it does not say of its spaces is checked later.
    """
    if config.init is None:
        return None
    init = InitFile.read(config.init)
    if init.spec is not None:
        build_brain(init.spec, config, choice, init)
    return init


def _init_of(config: LearnerConfig, choice: Choice, resumed: StateDir | None) -> InitFile | None:
    """What fresh weights begin with; nothing when a checkpoint is gone on from."""
    if resumed is None:
        init = read_init(config, choice)
        if init is not None:
            kind = "policy" if init.checkpoint is None else "checkpoint"
            _log.info("training_starts_from_file", init=str(init.path), kind=kind)
        return init
    if config.init is not None:
        _log.warning(
            "init_ignored",
            init=str(config.init),
            problem=f"training goes on from the checkpoint in {resumed.checkpoints}",
        )
    return None


def build_brain(
    spec: EnvSpec, config: LearnerConfig, choice: Choice, init: InitFile | None = None
) -> Brain:
    """Builds what is trained for a pair of spaces, with fresh weights or those of a file.

    Raises:
        WireError: The spaces are of a kind that no model is made for.
        ConfigError: The network cannot be built, the algorithm cannot act in these spaces, or the
            file is of others.
    """
    training = config.training
    setup = Setup(spec, training.network, config.seed)
    learner = Learner(choice.build(setup), name=choice.path)
    quantizer = Quantizer(
        learner.policy, kl_max=kl_bound(training, choice.data), dead_zone=training.dead_zone
    )
    brain = Brain(spec, learner, quantizer)
    if init is not None:
        init.put_into(brain)
    return brain
