"""What comes next in a rollout: a pure rule, without clock, network or disk.

A device succeeded when it *acted* so many episodes on what is rolled out and said so, with the
digest of what it runs; that something was sent to it tells nothing. It failed when it refused it,
went back by itself, or died on it. One that was not heard in time holds up nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cloud_learner.rollout.plan import Kind
from cloud_learner.rollout.rollout import (
    Action,
    Assign,
    Enter,
    Member,
    OpenWave,
    Progress,
    Rollout,
    Settle,
    State,
    place,
)

MAX_DEATHS: Final = 3
"""Runs of a device that began anew on a policy in its wave, after which the policy is to blame."""
_SAID: Final = (Progress.STARTED, Progress.SUCCEEDED, Progress.FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device said of what is rolled out.

    Attributes:
        progress: `STARTED`, `SUCCEEDED` or `FAILED`; `LEFT` of what was aborted.
        reason: Of it, for people.
        episodes: Acted on it in its present run.
        run_id: Of the process that said so.
    """

    progress: Progress
    reason: str = ""
    episodes: int = 0
    run_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a device now.

    Attributes:
        present: Whether it is heard of.
        outcome: What it said of this rollout; None: nothing, or nothing new.
    """

    present: bool = True
    outcome: Outcome | None = None


def decide(rollout: Rollout, reports: Mapping[str, Report], now_s: float) -> tuple[Action, ...]:
    """What happens now, in order; nothing more happens when it is asked again right after.

    Args:
        rollout: As it is.
        reports: Every device that it is for.
        now_s: The rollout's own clock, in seconds.
    """
    return tuple(_Deciding(rollout, reports, now_s).actions())


class _Deciding:
    """One decision: the rollout, as it becomes."""

    def __init__(self, rollout: Rollout, reports: Mapping[str, Report], now_s: float) -> None:
        self._rollout = rollout
        self._reports = reports
        self._now_s = now_s
        # Whoever is not there is asked last: it would hold up its wave for nothing.
        self._waiting = sorted(
            (device_id for device_id in reports if device_id not in rollout.members),
            key=lambda each: (not reports[each].present, place(rollout.rollout_id, each)),
            reverse=True,  # the next is the last
        )

    def actions(self) -> Iterator[Action]:
        for device_id in sorted(self._rollout.members):
            report = self._reports.get(device_id, Report(present=False))
            yield from self._do(self._judge(self._rollout.members[device_id], report))
        if self._rollout.state not in (State.ACTIVE, State.PAUSED):
            return
        yield from self._do(self._give_up(through=False))
        while self._rollout.state is State.ACTIVE:
            yield from self._fill()
            if not self._through():
                return
            yield from self._do(self._give_up(through=True) or self._next())

    def _do(self, action: Action | None) -> Iterator[Action]:
        if action is not None:
            self._rollout = self._rollout.after(action, self._now_s)
            yield action

    def _judge(self, member: Member, report: Report) -> Settle | None:
        said = report.outcome
        if said is not None and self._counts(member, said):
            return self._heard(member, said)
        if self._rollout.state is not State.ACTIVE or member.progress.settled:
            return None
        if self._now_s - member.assigned_s < self._rollout.plan.wave_timeout_s:
            return None
        within = f"within {self._rollout.plan.wave_timeout_s:g} s"
        if member.progress is Progress.OFFERED:
            why = f"did not take it {within}" if report.present else f"was not there {within}"
            return Settle(member.device_id, Progress.TIMED_OUT, why)
        if report.present:
            acted = f"acted {member.episodes} of {self._rollout.plan.episodes} episodes {within}"
            return Settle(member.device_id, Progress.TIMED_OUT, acted)
        return Settle(member.device_id, Progress.FAILED, f"died on it: silent since, {within}")

    def _counts(self, member: Member, said: Outcome) -> bool:
        """Whether what is said tells more than what is known: a failure or a success stays."""
        if said.progress is Progress.LEFT or member.progress is Progress.LEFT:
            return said.progress is Progress.LEFT and self._rollout.state is State.ABORTED
        if member.progress is Progress.SUCCEEDED:
            return said.progress is Progress.FAILED
        return said.progress in _SAID and member.progress is not Progress.FAILED

    def _heard(self, member: Member, said: Outcome) -> Settle | None:
        again = bool(member.run_id and said.run_id and said.run_id != member.run_id)
        died = again and member.progress is Progress.STARTED
        # An agent's update starts a new run by itself; who counts those deaths is its launcher.
        counts = died and self._rollout.plan.kind is Kind.POLICY
        deaths = member.deaths + int(counts)
        progress, reason = said.progress, said.reason
        if deaths >= MAX_DEATHS and progress is Progress.STARTED:
            progress, reason = Progress.FAILED, f"died {deaths} times on it"
        settled = Settle(
            member.device_id, progress, reason, said.episodes, said.run_id or member.run_id, deaths
        )
        after = self._rollout.after(settled, self._now_s).members[member.device_id]
        return settled if after != member else None

    def _give_up(self, *, through: bool) -> Enter | None:
        rollout, plan = self._rollout, self._rollout.plan
        failed = rollout.count(Progress.FAILED)
        judged = len(rollout.members) - rollout.count(Progress.TIMED_OUT)
        over = judged > 0 and failed > plan.max_failures * judged
        if over and (through or failed >= plan.min_failures):
            first = min(
                (each for each in rollout.members.values() if each.progress is Progress.FAILED),
                key=lambda each: (each.since_s, each.device_id),
            )
            return Enter(
                State.ABORTED,
                f"{failed} of {judged} devices failed, {100 * plan.max_failures:g}% may: "
                f"{first.device_id}: {first.reason}",
            )
        if through and not rollout.count(Progress.SUCCEEDED) and not self._waiting:
            asked = len(rollout.members)
            return Enter(State.ABORTED, f"none of {asked} devices acted on it in time")
        return None

    def _fill(self) -> Iterator[Action]:
        """A device that timed out takes nobody's place: the next one is asked instead."""
        rollout = self._rollout
        wave = rollout.plan.waves[rollout.wave]
        devices = len(self._reports.keys() | rollout.members.keys())
        have = len(rollout.members) - rollout.count(Progress.TIMED_OUT)
        wanted = wave.size(devices) if devices else 0
        joining = [self._waiting.pop() for _ in range(min(wanted - have, len(self._waiting)))]
        yield from self._do(Assign(tuple(joining)) if joining else None)

    def _through(self) -> bool:
        members = self._rollout.members.values()
        return bool(members) and all(member.progress.settled for member in members)

    def _next(self) -> Action:
        rollout = self._rollout
        good = rollout.count(Progress.SUCCEEDED)
        late = rollout.count(Progress.TIMED_OUT)
        told = f"{good} of {len(rollout.members)} devices acted on it"
        told += f", {late} were not heard in time" if late else ""
        if rollout.wave + 1 < len(rollout.plan.waves):
            return OpenWave(told)
        return Enter(State.PROMOTED, told)
