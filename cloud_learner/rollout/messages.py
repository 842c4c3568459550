"""Rollouts as messages, and plans read from them."""

from __future__ import annotations

from typing import Final

from cloud_learner.rollout.plan import Kind, Plan, Wave
from cloud_learner.rollout.rollout import Progress, Rollout, State
from shoal.errors import ConfigError
from shoal.v1 import rollout_pb2 as pb

KINDS: Final = {
    pb.ROLLOUT_KIND_POLICY: Kind.POLICY,
    pb.ROLLOUT_KIND_AGENT: Kind.AGENT,
}
PROGRESS: Final = {
    pb.ROLLOUT_PROGRESS_OFFERED: Progress.OFFERED,
    pb.ROLLOUT_PROGRESS_STARTED: Progress.STARTED,
    pb.ROLLOUT_PROGRESS_SUCCEEDED: Progress.SUCCEEDED,
    pb.ROLLOUT_PROGRESS_FAILED: Progress.FAILED,
    pb.ROLLOUT_PROGRESS_TIMED_OUT: Progress.TIMED_OUT,
    pb.ROLLOUT_PROGRESS_LEFT: Progress.LEFT,
}
COMMANDS: Final = {
    pb.ROLLOUT_COMMAND_PAUSE: State.PAUSED,
    pb.ROLLOUT_COMMAND_RESUME: State.ACTIVE,
    pb.ROLLOUT_COMMAND_ABORT: State.ABORTED,
}
_KINDS_PB: Final = {kind: number for number, kind in KINDS.items()}
_PROGRESS_PB: Final = {progress: number for number, progress in PROGRESS.items()}
_STATES_PB: Final = {
    State.STARTING: pb.ROLLOUT_STATE_STARTING,
    State.ACTIVE: pb.ROLLOUT_STATE_ACTIVE,
    State.PAUSED: pb.ROLLOUT_STATE_PAUSED,
    State.PROMOTED: pb.ROLLOUT_STATE_PROMOTED,
    State.ABORTED: pb.ROLLOUT_STATE_ABORTED,
}


def plan_of(message: pb.RolloutPlan) -> Plan:
    """Reads a plan.

    Raises:
        ConfigError: Something in it is out of its range.
    """
    kind = KINDS.get(message.kind)
    if kind is None:
        raise ConfigError("a rollout is of a policy or of an agent: give one of the two")
    return Plan(
        kind=kind,
        version=message.version,
        waves=tuple(Wave(each.devices, each.share) for each in message.waves),
        episodes=message.episodes,
        wave_timeout_s=message.wave_timeout_s,
        max_failures=message.max_failures,
        min_failures=message.min_failures,
        devices=message.devices,
        reason=message.reason,
    )


def plan_pb(plan: Plan) -> pb.RolloutPlan:
    """A plan as a message."""
    return pb.RolloutPlan(
        kind=_KINDS_PB[plan.kind],
        version=plan.version,
        waves=[pb.RolloutWave(devices=each.devices, share=each.share) for each in plan.waves],
        episodes=plan.episodes,
        wave_timeout_s=plan.wave_timeout_s,
        max_failures=plan.max_failures,
        min_failures=plan.min_failures,
        devices=plan.devices,
        reason=plan.reason,
    )


def rollout_pb(rollout: Rollout, *, devices: int, members: bool = True) -> pb.Rollout:
    """A rollout as a message.

    Args:
        rollout: Which.
        devices: How many it is for, as far as they are known.
        members: Whether each device is told of.
    """
    return pb.Rollout(
        rollout_id=rollout.rollout_id,
        plan=plan_pb(rollout.plan),
        state=_STATES_PB[rollout.state],
        reason=rollout.reason,
        wave=rollout.wave + 1,
        members=[
            pb.RolloutMember(
                device_id=each.device_id,
                wave=each.wave + 1,
                progress=_PROGRESS_PB[each.progress],
                reason=each.reason,
                episodes=each.episodes,
                age_s=max(0.0, rollout.ran_s - each.since_s),
            )
            for each in sorted(
                rollout.members.values() if members else (),
                key=lambda member: (member.wave, member.device_id),
            )
        ],
        history=[
            pb.RolloutNote(at_s=each.at_s, name=each.name, reason=each.reason)
            for each in rollout.history
        ],
        candidate_version=rollout.versions.candidate,
        baseline_version=rollout.versions.baseline,
        undo_version=rollout.versions.undo,
        ran_s=rollout.ran_s,
        created_unix_ms=rollout.created_unix_ms,
        devices=devices,
        asked=len(rollout.members),
        succeeded=rollout.count(Progress.SUCCEEDED),
        failed=rollout.count(Progress.FAILED),
        timed_out=rollout.count(Progress.TIMED_OUT),
    )
