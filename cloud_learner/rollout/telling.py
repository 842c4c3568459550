"""What a rollout did, as events of the devices that it was done to: why each of them switched."""

from __future__ import annotations

from cloud_learner.fleet.teller import Teller
from cloud_learner.rollout.rollout import (
    Action,
    Assign,
    Enter,
    OpenWave,
    Progress,
    Rollout,
    Settle,
    State,
)
from cloud_learner.uplink.arrivals import LEARNER
from shoal.v1 import device_pb2

_GOOD = (Progress.STARTED, Progress.SUCCEEDED, Progress.LEFT)


def tell(teller: Teller, before: Rollout, rollout: Rollout, action: Action) -> None:
    """Tells what was done to each device; what became of all, as an event of the learner.

    A device that only acted more episodes is where it was: of that nothing is told.

    Args:
        teller: Keeps the events.
        before: The rollout, before any of the actions that are told together.
        rollout: The same after all of them.
        action: One of them.
    """
    plan = rollout.plan
    what = f"rollout {rollout.rollout_id} of {plan.kind} {plan.version}"
    fields = {"rollout": str(rollout.rollout_id), plan.kind.value: plan.version}
    info, warning = device_pb2.SEVERITY_INFO, device_pb2.SEVERITY_WARNING
    match action:
        case Assign(device_ids):
            for device_id in device_ids:
                wave = rollout.members[device_id].wave + 1
                message = f"{what}: it joins wave {wave} of {len(plan.waves)}"
                if plan.reason:
                    message += f", {plan.reason}"
                teller.record(device_id, "rollout_offered", message, severity=info, **fields)
        case Settle(device_id, progress, reason) if _moves(before, action):
            good = progress in _GOOD
            message = f"{what}: {progress}" + (f", {reason}" if reason else "")
            severity = info if good else warning
            teller.record(device_id, f"rollout_{progress}", message, severity=severity, **fields)
        case OpenWave(reason):
            message = f"{what}: the next wave opens, {reason}"
            teller.record(LEARNER, "rollout_wave_opened", message, severity=info, **fields)
        case Enter(state, reason):
            message = f"{what} is {state}" + (f": {reason}" if reason else "")
            severity = warning if state is State.ABORTED else info
            teller.record(LEARNER, f"rollout_{state}", message, severity=severity, **fields)
            if state is State.ABORTED:
                for device_id, member in rollout.members.items():
                    if member.progress is not Progress.FAILED:
                        back = f"{what} is aborted, it goes back: {reason}"
                        teller.record(
                            device_id, "rollout_aborted", back, severity=warning, **fields
                        )


def _moves(before: Rollout, settled: Settle) -> bool:
    """Whether a device is further than it was, or another run of it is as far."""
    member = before.members.get(settled.device_id)
    if member is None or member.progress is not settled.progress:
        return True
    return bool(settled.run_id) and settled.run_id != member.run_id
