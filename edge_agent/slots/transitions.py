"""How the slots change: from a state and what happened to the next state, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from edge_agent.slots.state import (
    Content,
    Happening,
    Moment,
    Name,
    Refused,
    Release,
    Slot,
    State,
    Trial,
    cut,
)

DEFAULT_MAX_DEATHS: Final = 3
POWER_CUT: Final = "the power was cut, or the device rebooted"


@dataclass(frozen=True, slots=True)
class End:
    """How a run of the agent ended.

    Attributes:
        died: It was not asked to.
        reason: What is known of it.
    """

    died: bool
    reason: str


def start_install(state: State, release: Release, now: Moment) -> State:
    """The spare slot is about to be emptied and filled.

    Raises:
        Refused: The spare slot is what a trial would go back to.
    """
    if state.trial is not None and state.fallback is not None:
        raise Refused(
            f"slot {state.current} is on trial, and slot {state.fallback} is what it goes back to: "
            "wait until it has acted, or `shoal-slots rollback --reason TEXT` first"
        )
    del now
    return state.put(state.spare, Slot(Content.INSTALLING, release))


def finish_install(state: State, release: Release, now: Moment) -> State:
    """What was put into the spare slot is whole, on the disk, and its health check passed.

    Raises:
        Refused: It is not the one that was being installed there.
    """
    name = state.spare
    slot = state.slot(name)
    if slot.content is not Content.INSTALLING or slot.release != release:
        raise Refused(f"slot {name} is {slot.content}: this bundle was not being installed there")
    return state.put(name, Slot(Content.INSTALLED, release)).note(
        now, Happening.INSTALLED, name, f"bundle {release.bundle_version}"
    )


def fail_install(state: State, reason: str, now: Moment) -> State:
    """What was put into the spare slot can't be used."""
    name = state.spare
    slot = state.slot(name)
    if slot.content is not Content.INSTALLING:
        return state
    noted = state.note(now, Happening.INSTALL_FAILED, name, reason)
    return noted.put(name, Slot(reason=cut(reason)))


def switch(state: State, reason: str, now: Moment) -> State:
    """The spare slot runs from now on, on trial, even if it acted before.

    Raises:
        Refused: Nothing that may run is installed there, or a trial is going on.
    """
    name = state.spare
    if not state.slot(name).content.runnable:
        raise Refused(
            f"slot {name} is {state.slot(name).content}: `shoal-slots install BUNDLE` first"
        )
    if state.trial is not None and state.slot(name).content is Content.COMMITTED:
        raise Refused(
            f"slot {state.current} is on trial, and slot {name} is what it goes back to: "
            "`shoal-slots rollback --reason TEXT` does that now"
        )
    fresh = state.put(name, replace(state.slot(name), content=Content.INSTALLED, reason=""))
    return _try(fresh, name, reason, now).note(now, Happening.SWITCHED, name, reason)


def commit(state: State, trial: int, reason: str, now: Moment) -> State:
    """The slot on trial acted; the same state if that trial is over.

    Args:
        state: From which.
        trial: The number of the trial in which it acted.
        reason: How it acted.
        now: When.
    """
    name = state.current
    if name is None or state.trial is None or state.trial.number != trial:
        return state
    committed = replace(state.slot(name), content=Content.COMMITTED, reason=cut(reason))
    return replace(state.put(name, committed), trial=None).note(
        now, Happening.COMMITTED, name, reason
    )


def roll_back(state: State, reason: str, now: Moment) -> State:
    """The slot before runs from now on; on trial, if it never acted. The one left is condemned.

    Raises:
        Refused: There is nothing to go back to.
    """
    left, name = state.current, state.fallback
    if left is None or name is None:
        raise Refused.because(
            f"there is nothing to go back to: slot {state.spare} is "
            f"{state.slot(state.spare).content}",
            "install a bundle that works",
        )
    condemned = replace(state.slot(left), content=Content.CONDEMNED, reason=cut(reason))
    after = state.put(left, condemned)
    if after.slot(name).content is Content.COMMITTED:
        after = replace(after, current=name, trial=None)
    else:
        after = _try(after, name, reason, now)
    return after.note(now, Happening.ROLLED_BACK, name, f"{left}: {reason}")


def begin_run(
    state: State, now: Moment, *, max_deaths: int = DEFAULT_MAX_DEATHS, broken: str = ""
) -> State:
    """The agent is about to be started.

    A run whose end nobody noted died, if it was started in this boot; else the power was cut, and
    that says nothing about the slot.

    Args:
        state: From which.
        now: When.
        max_deaths: In one boot, after which a trial has failed.
        broken: Why the current slot can't be started, as far as its files say.
    """
    if state.running_boot_id is not None:
        cut_off = state.running_boot_id != now.boot_id
        end = End(not cut_off, POWER_CUT if cut_off else "it ended, and nobody saw how")
        state = end_run(state, end, now, max_deaths=max_deaths)
    if broken and state.fallback is not None:
        state = roll_back(state, broken, now)
    if state.trial is not None and state.trial.boot_id != now.boot_id:
        state = replace(state, trial=replace(state.trial, boot_id=now.boot_id, deaths=0))
    return replace(state, running_boot_id=now.boot_id)


def end_run(state: State, end: End, now: Moment, *, max_deaths: int = DEFAULT_MAX_DEATHS) -> State:
    """The agent ended. Too many deaths in one boot end a trial, if there is what to go back to."""
    after = replace(state, running_boot_id=None)
    name, trial = after.current, after.trial
    if name is None or trial is None or not end.died:
        return after
    before = trial.deaths if trial.boot_id == now.boot_id else 0
    # Without anything to go back to it is started again and again: stop counting somewhere.
    deaths = min(before + 1, max_deaths)
    after = replace(after, trial=replace(trial, boot_id=now.boot_id, deaths=deaths))
    if deaths > before:
        after = after.note(now, Happening.DIED, name, end.reason)
    if deaths < max_deaths or after.fallback is None:
        return after
    return roll_back(after, f"it died {deaths} times in one boot, at last: {end.reason}", now)


def expire(state: State, trial: int, reason: str, now: Moment) -> State:
    """The slot on trial had its time and did not act; the same state if that trial is over."""
    if state.trial is None or state.trial.number != trial or state.fallback is None:
        return state
    return roll_back(state, reason, now)


def refuse(state: State, reason: str, now: Moment) -> State:
    """An update was not installed."""
    return state.note(now, Happening.REFUSED, state.spare, reason)


def recover(found: dict[Name, Release], current: Name | None, reason: str, now: Moment) -> State:
    """The state that what lies in the slots speaks for, where the file is lost.

    Args:
        found: What is in slots that look whole.
        current: Which one the link names.
        reason: What became of the file.
        now: When.
    """
    state = State()
    for name, release in found.items():
        state = state.put(name, Slot(Content.INSTALLED, release, "found there"))
    if current not in found:
        current = next(iter(found), None)
    if current is None:
        return state
    state = _try(state, current, reason, now)
    return state.note(now, Happening.RECOVERED, current, reason)


def _try(state: State, name: Name, reason: str, now: Moment) -> State:
    trial = Trial(state.entries + 1, cut(reason), now.unix_s, now.boot_id)
    return replace(state, current=name, trial=trial)
