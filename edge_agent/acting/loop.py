"""The control thread: acts, whatever happens around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from edge_agent.acting.actor import Actor, RolloutStopped
from edge_agent.config import ActorConfig
from edge_agent.dispatch.workplace import Workplace
from edge_agent.environments.env import EnvironmentFault
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.supervision.heart import Heart
from edge_agent.uplink.appetite import Pacer
from shoal.errors import PolicyRejected
from shoal.trajectory import Chunk
from shoal.v1 import device_pb2 as pb

STOP_CHECK_S = 0.25
"""How soon a control thread that waits for a policy notices that the process stops."""


def act_forever(
    actor: Actor,
    policies: PolicyStore,
    keep: Callable[[Chunk], object],
    events: Events,
    config: ActorConfig,
    stop: threading.Event,
    *,
    pacer: Pacer | None = None,
    workplace: Workplace | None = None,
    heart: Heart | None = None,
) -> None:
    """The control thread: acts with whatever policy is current until `stop` is set.

    It waits for a policy if it is told to, for the clock, and for nothing else. `pacer` holds it
    back to the rate that the learner wants. With a `workplace` it acts while it has a task. Each
    chunk is handed to `keep`, which does not wait either. `heart` beats at each turn, and while it
    waits.

    Raises:
        EnvironmentFault: an environment raised or broke its contract, and it was not a task's.
    """
    version, chunks = 0, 0
    heart = heart or Heart()
    while not stop.is_set():
        heart.beat()
        policy = policies.current
        if policy is None:
            if config.before_policy == "wait":
                _wait_newer(policies, 0, STOP_CHECK_S, stop, heart)
            else:
                actor.safe_steps(config.chunk_steps, stop)
            continue
        if policy.version != version:
            version, chunks = policy.version, 0
        elif chunks == config.max_chunks_per_policy > 0:
            # Enough under one version: a newer one is worth waiting for, but not for ever.
            _wait_newer(policies, version, config.pace_timeout_s, stop, heart)
            chunks = 0
            continue
        if workplace is not None and not workplace.ready():
            continue
        chunk = _rollout(actor, policy, policies, events, workplace, stop)
        if chunk is None:
            continue
        keep(chunk)
        chunks += 1
        if workplace is not None:
            workplace.note(chunk)
        if pacer is not None:
            pacer.wait(chunk.transitions, stop, heart.beat)


def _rollout(
    actor: Actor,
    policy: Policy,
    policies: PolicyStore,
    events: Events,
    workplace: Workplace | None,
    stop: threading.Event,
) -> Chunk | None:
    """A chunk; None when there is none: the policy or the task is given up, or it is stopped.

    Raises:
        EnvironmentFault: an environment raised or broke its contract, and it was not a task's.
    """
    try:
        return actor.rollout(policy, stop)
    except RolloutStopped:
        return None
    except EnvironmentFault as error:
        if workplace is None:
            raise
        workplace.fail(error)
    except PolicyRejected as error:
        before = policies.condemn(policy, error.reason)
        instead = "no policy acts"
        if before is not None:
            same = before.version == policy.version
            instead = f"its {before.precision} form acts" if same else "the one before acts"
        events.emit(
            pb.SEVERITY_ERROR,
            "policy_condemned",
            f"{error}; {instead} now",
            reason=error.reason,
            policy_version=policy.version,
        )
    return None


def _wait_newer(
    policies: PolicyStore, version: int, timeout_s: float, stop: threading.Event, heart: Heart
) -> None:
    """Waits until a policy newer than `version` is current, `stop` is set, or time is up."""
    deadline_s = time.monotonic() + timeout_s
    while not stop.is_set():
        heart.beat()
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or policies.wait_newer(version, min(left_s, STOP_CHECK_S)) is not None:
            return
