"""A rollout as a value: who has it, how far they are, and how it changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from cloud_learner.rollout.plan import MAX_TEXT, Kind, Plan

MAX_NOTES: Final = 256
"""Notes kept of one rollout; of more, the oldest but the first go."""


class State(StrEnum):
    """Where a rollout is."""

    STARTING = "starting"
    ACTIVE = "active"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ABORTED = "aborted"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self in (State.PROMOTED, State.ABORTED)


class Progress(StrEnum):
    """Where a device is."""

    OFFERED = "offered"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LEFT = "left"

    @property
    def settled(self) -> bool:
        """Whether its wave waits no longer for it."""
        return self not in (Progress.OFFERED, Progress.STARTED)


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a wave.

    Attributes:
        device_id: Which.
        wave: Its index.
        assigned_s: When it joined, by the rollout's own clock.
        progress: How far it is.
        since_s: Since when, by that clock.
        reason: Of that progress.
        episodes: Acted on it, as it said last.
        run_id: Of the process that said so.
        deaths: How often a run of it began anew on it.
    """

    device_id: str
    wave: int
    assigned_s: float
    progress: Progress = Progress.OFFERED
    since_s: float = 0.0
    reason: str = ""
    episodes: int = 0
    run_id: bytes = b""
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to a rollout.

    Attributes:
        at_s: When, by its own clock.
        name: snake_case.
        reason: Why.
    """

    at_s: float
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyVersions:
    """Under which numbers a policy rollout publishes; 0: not yet, or not at all.

    Attributes:
        source: What the operator named.
        baseline_source: What devices are held at, and go back to, as it was published first.
        baseline: The version at which devices are held that are not in a wave.
        candidate: The version that devices in a wave get.
        undo: The version under which an aborted one gives the baseline back.
        undone: Whether nothing is left to be given back.
    """

    source: int = 0
    baseline_source: int = 0
    baseline: int = 0
    candidate: int = 0
    undo: int = 0
    undone: bool = False

    def in_use(self) -> frozenset[int]:
        """The versions that must not be deleted under it."""
        numbers = (self.source, self.baseline_source, self.baseline, self.candidate, self.undo)
        return frozenset(each for each in numbers if each)


@dataclass(frozen=True, slots=True)
class Assign:
    """Devices join the open wave."""

    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """A device is further than it was."""

    device_id: str
    progress: Progress
    reason: str = ""
    episodes: int = 0
    run_id: bytes = b""
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class OpenWave:
    """The next wave opens."""

    reason: str


@dataclass(frozen=True, slots=True)
class Enter:
    """The rollout goes into another state."""

    state: State
    reason: str


Action = Assign | Settle | OpenWave | Enter


@dataclass(frozen=True, slots=True)
class Rollout:
    """Everything that is kept of one.

    rollout = Rollout(7, plan)
    for action in decide(rollout, reports, now_s):
        rollout = rollout.after(action, now_s)

    Attributes:
        rollout_id: From 1, never used again.
        plan: What was asked for.
        state: Where it is.
        reason: Why it is there.
        wave: Index of the open wave.
        ran_s: Its own clock: seconds that it was active and the learner ran.
        members: The devices in waves, by id.
        history: What happened, the oldest first.
        versions: Of a policy rollout.
        created_unix_ms: Wall clock, for people.
    """

    rollout_id: int
    plan: Plan
    state: State = State.STARTING
    reason: str = ""
    wave: int = 0
    ran_s: float = 0.0
    members: Mapping[str, Member] = field(default_factory=dict)
    history: tuple[Note, ...] = ()
    versions: PolicyVersions = field(default_factory=PolicyVersions)
    created_unix_ms: int = 0

    @property
    def gives_back(self) -> bool:
        """Whether it was aborted, and its policy is not taken back yet."""
        aborted = self.plan.kind is Kind.POLICY and self.state is State.ABORTED
        return aborted and not self.versions.undone

    @property
    def in_progress(self) -> bool:
        """Whether anything still comes of it."""
        return self.gives_back or not self.state.ended

    def after(self, action: Action, now_s: float) -> Rollout:
        """The rollout once that happened, at a time of its own clock."""
        match action:
            case Assign(device_ids):
                joined = {
                    each: Member(each, self.wave, now_s, since_s=now_s) for each in device_ids
                }
                return replace(self, members={**self.members, **joined})
            case Settle():
                return replace(self, members={**self.members, **self._settled(action, now_s)})
            case OpenWave(reason):
                opened = replace(self, wave=self.wave + 1)
                return opened.noting(f"wave_{opened.wave + 1}_opened", reason, now_s)
            case Enter(state, reason):
                entered = replace(self, state=state, reason=reason[:MAX_TEXT])
                return entered.noting(str(state), reason, now_s)

    def noting(self, name: str, reason: str, now_s: float) -> Rollout:
        """The same with one more note."""
        history = (*self.history, Note(now_s, name, reason[:MAX_TEXT]))
        if len(history) > MAX_NOTES:
            history = (history[0], *history[2:])
        return replace(self, history=history)

    def count(self, *progress: Progress) -> int:
        """How many devices are there."""
        return sum(member.progress in progress for member in self.members.values())

    def _settled(self, action: Settle, now_s: float) -> dict[str, Member]:
        before = self.members[action.device_id]
        moved = before.progress is not action.progress
        return {
            action.device_id: replace(
                before,
                progress=action.progress,
                since_s=now_s if moved else before.since_s,
                reason=(action.reason or ("" if moved else before.reason))[:MAX_TEXT],
                episodes=max(before.episodes, action.episodes),
                run_id=action.run_id or before.run_id,
                deaths=max(before.deaths, action.deaths),
            )
        }


def place(rollout_id: int, device_id: str) -> bytes:
    """Where a device stands in the order of a rollout: the same for ever, another in each."""
    return hashlib.sha256(f"{rollout_id}/{device_id}".encode()).digest()
