"""What a device does next about a bundle that is rolled out to it: a pure rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.slots.state import Content, Name, State
from edge_agent.updates.outcome import Outcome, Progress


class Step(StrEnum):
    """What to do."""

    NOTHING = "nothing"
    WAIT = "wait"  # something changes without being told: look again
    DOWNLOAD = "download"
    REQUEST = "request"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class AgentAsked:
    """A bundle that the device is to run.

    Attributes:
        rollout_id: Of the rollout.
        version: Of the bundle.
        digest: sha256 of its manifest, 32 bytes.
        bundle_bytes: Size of the file.
        bundle_digest: sha256 of the file, 32 bytes.
        reason: Of the switch, for people.
        go_back: Leave it for the slot before.
    """

    rollout_id: int
    version: str
    digest: bytes
    bundle_bytes: int
    bundle_digest: bytes
    reason: str = ""
    go_back: bool = False

    @property
    def name(self) -> str:
        """The directory under `updates/` that it is unpacked into."""
        return self.digest.hex()


@dataclass(frozen=True, slots=True)
class Result:
    """What the launcher left of a request.

    Attributes:
        digest: Of the bundle, hexadecimal.
        state: `trial`, `refused` or `failed`.
        reason: For people.
    """

    digest: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """What is so on the device.

    Attributes:
        state: Of its slots; None: it does not run from slots.
        requested: Digest of the bundle that was asked for and not dealt with; empty: none is.
        result: Of the last request; None: there is none.
        unpacked: Whether the bundle lies there, whole and proven.
        problem: Why the bundle cannot be used; empty: nothing speaks against it.
    """

    state: State | None
    requested: str = ""
    result: Result | None = None
    unpacked: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Next:
    """What to do, and what to tell.

    Attributes:
        step: What to do.
        progress: What to tell; None: nothing.
        reason: Of that.
    """

    step: Step
    progress: Progress | None = None
    reason: str = ""

    def outcome(self, asked: AgentAsked) -> Outcome | None:
        """What to tell of a bundle."""
        if self.progress is None:
            return None
        return Outcome(asked.rollout_id, self.progress, asked.digest, 0, self.reason)


def next_step(asked: AgentAsked, seen: AgentSeen) -> Next:
    """What to do next, and what to tell.

    A bundle is a success when its slot was committed: its agent acted. That it was fetched,
    installed or started is none.
    """
    state = seen.state
    name = None if state is None else _slot_of(state, asked.name)
    if state is not None and name is not None and name is state.current:
        return _of_current(asked, seen, state)
    if asked.go_back:
        return Next(Step.NOTHING, Progress.LEFT, _why_left(state, name))
    why = _why_not(asked, seen, name)
    if why:
        return Next(Step.NOTHING, Progress.FAILED, why)
    if seen.requested == asked.name:
        return Next(Step.WAIT, Progress.STARTED, "is being installed")
    if seen.unpacked:
        return Next(Step.REQUEST, Progress.STARTED, "is being installed")
    return Next(Step.DOWNLOAD, Progress.STARTED, "is being fetched")


def _why_left(state: State | None, name: Name | None) -> str:
    """What the launcher noted of a slot that was left; empty: nothing was, or it never ran."""
    return "" if state is None or name is None else state.slot(name).reason


def _slot_of(state: State, digest: str) -> Name | None:
    for name in Name:
        release = state.slot(name).release
        if release is not None and release.digest == digest:
            return name
    return None


def _of_current(asked: AgentAsked, seen: AgentSeen, state: State) -> Next:
    if asked.go_back:
        if state.fallback is None:
            why = "there is nothing to go back to: it runs on"
            return Next(Step.NOTHING, Progress.FAILED, why)
        return Next(Step.WAIT if seen.requested == asked.name else Step.LEAVE)
    if state.trial is not None:
        return Next(Step.WAIT, Progress.STARTED, f"slot {state.current} is on trial")
    assert state.current is not None  # noqa: S101 - it is the slot of that bundle
    return Next(Step.NOTHING, Progress.SUCCEEDED, state.slot(state.current).reason)


def _why_not(asked: AgentAsked, seen: AgentSeen, name: Name | None) -> str:
    """Why the bundle will not run here; empty: it may."""
    if seen.state is None:
        return "this agent does not run from slots: install it by `shoal flash ssh`"
    if name is not None and seen.state.slot(name).content is Content.CONDEMNED:
        return f"rolled back: {seen.state.slot(name).reason}"
    result = seen.result
    if result is not None and result.digest == asked.name and result.state in ("refused", "failed"):
        return f"{result.state}: {result.reason}"
    return seen.problem
