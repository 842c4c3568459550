"""The agent: puts the parts of a device together and runs them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from edge_agent.acting.actor import Actor, Control
from edge_agent.acting.loop import act_forever
from edge_agent.acting.safe_action import safe_actions
from edge_agent.config import AgentConfig
from edge_agent.dispatch.dispatch import Dispatch
from edge_agent.dispatch.workplace import Workplace
from edge_agent.downlink.downlink import Downlink
from edge_agent.enrollment.renewal import Renewer
from edge_agent.environments.env import Environments, make_env
from edge_agent.events import Events
from edge_agent.gradients.queue import GradientQueue
from edge_agent.gradients.uplink import GradientUplink
from edge_agent.gradients.worker import GradientWorker, find_worker
from edge_agent.policies.policy_saver import PolicySaver
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import PrecisionChooser
from edge_agent.run_id import new_run_id
from edge_agent.spool.chunk_encoder import ChunkEncoder
from edge_agent.spool.spool import Spool
from edge_agent.status import Certifier, Reporter
from edge_agent.supervision.heart import Heart, RestingClock
from edge_agent.supervision.notifier import Notifier
from edge_agent.supervision.slot_file import SlotFile
from edge_agent.supervision.supervision import Supervision
from edge_agent.supervision.trial_witness import TrialWitness
from edge_agent.updates.acted import Acted
from edge_agent.updates.update_files import UpdateFiles, slots_file
from edge_agent.updates.updates import Updates
from edge_agent.uplink.appetite import Appetite, Pacer
from edge_agent.uplink.uplink import Uplink
from shoal.errors import IdentityError
from shoal.identity import POLICY_KEY_FILE, Identity
from shoal.services import Service, in_thread, run_services
from shoal.topics import Topics, check_device_id
from shoal.trajectory import Chunk


async def run(config: AgentConfig) -> None:
    """Runs a device until SIGTERM or SIGINT.

    Raises:
        ShoalError: the identity, the environment or the state directory cannot be used, or a part
            of the agent failed. Nothing the network or the learner do ends an agent.
    """
    make_worker = find_worker(config.gradients.worker) if config.mode == "gradients" else None
    identity = Identity.load(config.identity)
    device_id, public_key = check_device_id(identity.name), policy_key(identity)
    run_id = new_run_id(device_id, config.state_dir, config.actor.seed)
    events = Events(device_id, run_id, clock=time.time)
    appetite = Appetite(lapse_s=config.actor.appetite_lapse_s)
    heart, slots = Heart(), SlotFile.from_environ()
    slots.refresh()
    with (
        make_env(config.env) as envs,
        Spool(
            config.spool_path,
            max_bytes=config.spool.max_bytes,
            run_id=run_id,
            events=events,
            oldest_version=lambda: appetite.oldest_version,
        ) as spool,
        PolicyStore(
            config.policies_dir,
            fleet=config.fleet,
            public_key=public_key,
            spec=envs.spec,
            chooser=(
                chooser := PrecisionChooser(
                    config.actor.precision, spec=envs.spec, envs=envs.num_envs, events=events
                )
            ),
        ) as policies,
    ):
        control = Control(hz=config.actor.control_hz, safe_action=config.actor.safe_action)
        safe_actions(envs.spec.action, control.safe_action, envs.num_envs)
        downlink = Downlink(
            config.parameter_server,
            identity,
            policies,
            events,
            fleet=config.fleet,
            run_id=run_id,
        )
        encoder = ChunkEncoder(config.spool.compression, lambda: appetite.codecs)
        way = _spooled(spool, encoder, config.actor.chunk_steps)
        if make_worker is not None:
            worker = make_worker(envs.spec, allow=config.gradients.allow)
            way = _computed(config, identity, events, worker, envs, run_id=run_id)
        async with Uplink(
            config.broker,
            identity,
            spool,
            events,
            topics=Topics(config.fleet),
            certificate=Certifier(
                device_id, run_id, envs.spec, envs.num_envs, clock=time.time, slot=slots.report
            ),
            run_id=run_id,
            appetite=appetite,
        ) as uplink:
            # It resets the environment: what fails from here on is told to the fleet.
            actor = Actor(
                envs,
                run_id=run_id,
                chunk_steps=way.chunk_steps,
                control=control,
                clock=RestingClock(heart),
            )
            renewer = Renewer(identity, events, on_renewed=uplink.reconnect)
            workplace: Workplace | None = None
            witness = TrialWitness(config.state_dir, acts=config.trial.acts)
            supervision = Supervision(
                slots,
                Notifier.from_environ(),
                events,
                witness,
                heart,
                policies=policies,
                counters=actor.counters,
                state_dir=config.state_dir,
                has_task=lambda: workplace is None or workplace.task is not None,
            )
            reporter = Reporter(
                device_id,
                run_id,
                actor=actor,
                policies=policies,
                chooser=chooser,
                spool=spool,
                uplink=uplink,
                downlink=downlink,
                appetite=appetite,
                paced=control.hz is not None,
                queue=way.queue,
                gradients=way.gradients,
                slot=supervision.report,
            )
            services: dict[str, Service] = {
                "uplink": uplink.serve,
                "downlink": renewer.restarting(downlink.follow),
                "active": downlink.report_active,
                "saving": PolicySaver(policies).serve,
                "identity": renewer.serve,
                "supervision": supervision.serve,
                "status": lambda: uplink.report_every(
                    reporter.telemetry, config.telemetry_interval_s
                ),
            }
            acted = Acted()
            updates = Updates(
                config.parameter_server,
                identity,
                events,
                policies,
                downlink,
                acted,
                UpdateFiles(config.updates_dir, slots=slots_file()),
                fleet=config.fleet,
                public_key=public_key,
                run_id=run_id,
            )
            services["updates"] = renewer.restarting(updates.follow)
            services["outcomes"] = updates.report
            services["agent_update"] = updates.agent.serve
            if way.gradients is not None:
                services["gradients"] = renewer.restarting(way.gradients.serve)
            with ExitStack() as stack:
                if config.dispatch.enabled:
                    desk = Dispatch(
                        config.parameter_server,
                        identity,
                        events,
                        fleet=config.fleet,
                        run_id=run_id,
                    )
                    services["dispatch"] = renewer.restarting(desk.serve)
                    workplace = stack.enter_context(
                        Workplace(desk, actor, envs.spec, config.env, config.dispatch, events)
                    )
                services["act"] = in_thread(
                    functools.partial(
                        act_forever,
                        actor,
                        policies,
                        acted.counting(witness.seeing(way.keep)),
                        events,
                        config.actor,
                        # What has a rate of its own must act, whatever the learner can use.
                        pacer=Pacer(appetite) if control.hz is None else None,
                        workplace=workplace,
                        heart=heart,
                    )
                )
                await run_services(services)


@dataclass(frozen=True, slots=True)
class _Way:
    """Where chunks go.

    Attributes:
        keep: takes each of them, and does not wait.
        chunk_steps: how long they are.
        queue: of those that wait for their gradient, in the mode `gradients`.
        gradients: what pushes these.
    """

    keep: Callable[[Chunk], object]
    chunk_steps: int
    queue: GradientQueue | None = None
    gradients: GradientUplink | None = None


def _spooled(spool: Spool, encoder: ChunkEncoder, chunk_steps: int) -> _Way:
    """Onto the disk, and to the learner."""
    return _Way(
        lambda chunk: spool.append(encoder.encode(chunk), chunk.policy_version), chunk_steps
    )


def _computed(
    config: AgentConfig,
    identity: Identity,
    events: Events,
    worker: GradientWorker,
    envs: Environments,
    *,
    run_id: bytes,
) -> _Way:
    """Into gradients, here."""
    queue = GradientQueue(config.gradients.queue_chunks)
    gradients = GradientUplink(
        config.parameter_server,
        identity,
        queue,
        worker,
        events,
        config.gradients,
        fleet=config.fleet,
        run_id=run_id,
        spec=envs.spec,
    )
    return _Way(queue.put, config.gradients.chunk_steps(envs.num_envs), queue, gradients)


def policy_key(identity: Identity) -> bytes:
    """The key that policies must be signed with, 32 bytes.

    Raises:
        IdentityError: the identity holds none.
    """
    if identity.policy_public_key is None:
        raise IdentityError(
            f"{identity.directory / POLICY_KEY_FILE}: missing; a device needs it to verify policies"
        )
    return identity.policy_public_key
