"""The learner's composition root: everything is built here, and only here."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import torch

from cloud_learner.config import LearnerConfig
from cloud_learner.core import open_core
from cloud_learner.dispatch.config import specs_of
from cloud_learner.dispatch.service import DispatchService
from cloud_learner.dispatch.store import TaskStore
from cloud_learner.dispatch.tasks import TaskQueue
from cloud_learner.downlink.delegation_watch import check_signer, watch_delegation
from cloud_learner.downlink.pins import DAMAGED
from cloud_learner.downlink.policy_service import PolicyService
from cloud_learner.downlink.signing import load_signer
from cloud_learner.fleet.curve_service import CurveService
from cloud_learner.fleet.disk_watch import watch_disk
from cloud_learner.fleet.event_store import EventStore, save_events
from cloud_learner.fleet.events_service import EventsService
from cloud_learner.fleet.fleet import WARN_AGAIN_S, Fleet
from cloud_learner.fleet.service import FleetService
from cloud_learner.gradients.making import max_request_bytes, standard_of
from cloud_learner.rollout.opening import open_rollouts
from cloud_learner.serving.call_refusals import CallRefusals
from cloud_learner.serving.grpc_server import GrpcServer, Service
from cloud_learner.serving.handshakes import Handshakes, tell_refused
from cloud_learner.serving.revocations import Revocations
from cloud_learner.state_dir import StateDir
from cloud_learner.training.lockstep_watch import watch_lockstep
from cloud_learner.training.snapshots import Snapshots
from cloud_learner.training.sources import turns_of
from cloud_learner.training.sync_watch import watch_sync
from cloud_learner.uplink.appetite import Reading
from cloud_learner.uplink.appetite_broadcast import AppetiteBroadcast
from cloud_learner.uplink.inbox import Inbox
from cloud_learner.uplink.ingest import Ingest, IngestParts
from cloud_learner.uplink.session_watch import watch_session
from cloud_learner.uplink.subscriber import Subscriber
from cloud_learner.uplink.throttle import Throttle
from shoal.identity import Identity
from shoal.services import run_services
from shoal.topics import Topics


async def run(config: LearnerConfig, *, resume: bool, handshakes: Handshakes | None = None) -> None:
    """Runs the learner until it is stopped.

    Args:
        config: Its configuration.
        resume: Whether to go on with what lies in `state_dir`; when nothing does, it starts anew.
        handshakes: That the gRPC port refuses, if somebody listens for them.

    Raises:
        ShoalError: Something it cannot run without is missing, wrong or taken.
    """
    torch.set_num_threads(config.training.threads)
    topics = Topics(config.fleet)
    identity = Identity.load(config.identity)
    signer = load_signer(identity, config.fleet)
    check_signer(signer, time.time())
    state = StateDir.open(config.state_dir, resume=resume)
    rng = random.Random()
    async with AsyncExitStack() as stack:
        core = open_core(config, state, signer.key, stack, rng=rng, held_delegation=signer.held)
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
            pinned=core.pins.versions,
        )
        if core.pins.damage:
            parts.fleet.raise_condition(DAMAGED, core.pins.damage)
        policies = PolicyService(
            parts.policy_log.list,
            core.pins,
            Snapshots(state.snapshots, trainer.when_at_rest),
            parts.fleet,
            fleet=config.fleet,
        )
        event_store = stack.enter_context(EventStore(state.events))
        event_store.fill(parts.fleet.log)
        events = EventsService(parts.fleet.log, parts.counters, fleet=config.fleet)
        curve = CurveService(
            parts.stats, trainer.spec, config.training.algorithm, fleet=config.fleet
        )
        rollout = open_rollouts(config, state, core, signer.root.public_bytes_raw())
        services: list[Service] = [
            parts.parameter_server,
            fleet_service,
            events,
            curve,
            dispatch,
            policies,
            rollout.service,
        ]
        refusals = CallRefusals(parts.counters, parts.fleet.note_call_refused)
        revocations = Revocations(config.server.revocation_list, identity, counters=parts.counters)
        server = await stack.enter_async_context(
            GrpcServer(
                config.server.host,
                config.server.port,
                identity,
                services,
                max_request_bytes=max_request_bytes(config),
                interceptors=(*refusals.interceptors, *revocations.interceptors),
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
            "events": lambda: save_events(parts.fleet.log, event_store),
            "curve": curve.serve,
            "rollouts": rollout.rollouts.serve,
            "grpc": server.serve,
            "active": core.active.save_often,
            "revocations": revocations.follow,
            "disk": lambda: watch_disk(state.directory, parts.fleet),
        }
        if signer.held is not None:
            delegation = signer.held.delegation
            running["delegation"] = lambda: watch_delegation(delegation, parts.fleet)
        if handshakes is not None:
            running["handshakes"] = lambda: tell_refused(
                handshakes, parts.fleet, parts.counters, Throttle(WARN_AGAIN_S)
            )
        if config.training.mode != "gradients":  # where no chunks are expected
            running["session"] = lambda: watch_session(
                subscriber, ingest, parts.fleet, after_s=config.broker.session_renewal_s
            )
        if (turns := turns_of(parts.replay)) is not None:
            fixed = config.training.mode == "lockstep"
            watch = watch_lockstep if fixed else watch_sync
            running[config.training.mode] = lambda: watch(turns, parts.fleet)
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
