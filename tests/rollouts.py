"""Rollouts for tests, and devices that behave in every way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cloud_learner.rollout.decide import Outcome, Report, decide
from cloud_learner.rollout.plan import Kind, Plan, parse_waves
from cloud_learner.rollout.rollout import Action, Progress, Rollout, State

PLAN = Plan(Kind.POLICY, "5", parse_waves("1,50%,100%"), episodes=3, wave_timeout_s=60.0)
RUN = bytes(range(16))
GOOD = Outcome(Progress.SUCCEEDED, "", 3, RUN)
BAD = Outcome(Progress.FAILED, "self_test", 0, RUN)
BEGUN = Outcome(Progress.STARTED, "", 0, RUN)


def active(plan: Plan = PLAN, rollout_id: int = 7) -> Rollout:
    return Rollout(rollout_id, plan, state=State.ACTIVE)


def fleet(count: int) -> list[str]:
    return [f"pi-{number}" for number in range(count)]


@dataclass
class Play:
    """A rollout in the hands of a test: what devices say, and the clock."""

    rollout: Rollout = field(default_factory=active)
    devices: list[str] = field(default_factory=lambda: fleet(4))
    absent: set[str] = field(default_factory=set)
    now_s: float = 0.0
    actions: list[Action] = field(default_factory=list)

    def step(self, said: Mapping[str, Outcome] | None = None, *, after_s: float = 0.0) -> Rollout:
        """Decides once; everything is done before anybody can say more."""
        self.now_s += after_s
        reports = {
            each: Report(each not in self.absent, (said or {}).get(each)) for each in self.devices
        }
        for action in decide(self.rollout, reports, self.now_s):
            self.rollout = self.rollout.after(action, self.now_s)
            self.actions.append(action)
        if Progress.LEFT not in [each.progress for each in (said or {}).values()]:
            assert not decide(self.rollout, reports, self.now_s)  # once it aborted, that counts
        return self.rollout

    def all_say(self, outcome: Outcome, *, after_s: float = 0.0) -> Rollout:
        """Everybody in a wave who is there, and did not say so yet."""
        said = {
            each.device_id: outcome
            for each in self.rollout.members.values()
            if each.progress is not outcome.progress and each.device_id not in self.absent
        }
        return self.step(said, after_s=after_s)

    def pause(self) -> None:
        self.rollout = replace(self.rollout, state=State.PAUSED)

    def members(self, *progress: Progress) -> set[str]:
        return {
            each.device_id
            for each in self.rollout.members.values()
            if not progress or each.progress in progress
        }
