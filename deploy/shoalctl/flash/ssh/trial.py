"""How a bundle stands in the slots of a host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.slots.codec import Malformed, decode
from edge_agent.slots.state import Content, State
from shoal.errors import FlashFailed


class Verdict(StrEnum):
    """What a host does with a bundle."""

    ABSENT = "absent"
    INSTALLED = "installed"
    ON_TRIAL = "on_trial"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a bundle stands.

    Attributes:
        verdict: In a word.
        slot: Where it is; None: nowhere.
        reason: Why it was rolled back, or how its trial goes.
        running: Version of the bundle that runs; None: none does.
        other_on_trial: Whether another bundle is on trial that could be gone back from: the spare
            slot is not free then.
    """

    verdict: Verdict
    slot: str | None = None
    reason: str = ""
    running: str | None = None
    other_on_trial: bool = False


def read_slots(text: str) -> State:
    """The state of a host's slots.

    Args:
        text: Its `slots.json`; empty where nothing was ever installed.

    Raises:
        FlashFailed: It is damaged, or of a newer Shoal.
    """
    if not text.strip():
        return State()
    try:
        return decode(text.encode())
    except Malformed as error:
        raise FlashFailed(
            f"the state of its slots can't be read ({error}): look at `shoal-slots status` there; "
            "a newer Shoal may have written it"
        ) from error


def standing_of(state: State, digest: str) -> Standing:
    """How the bundle of a digest stands.

    Args:
        state: Of the slots.
        digest: The sha256 of the bundle's manifest, hexadecimal.
    """
    current = state.current
    release = state.slot(current).release if current is not None else None
    running = release.bundle_version if release else None
    if current is not None and release and release.digest == digest:
        if state.trial is None:
            return Standing(Verdict.COMMITTED, current, "", running)
        deaths = state.trial.deaths
        died = f"; its agent died {deaths} times" if deaths else ""
        return Standing(Verdict.ON_TRIAL, current, f"it has not acted yet{died}", running)
    spare = state.spare
    slot = state.slot(spare)
    mine = slot.release is not None and slot.release.digest == digest
    on_trial = state.trial is not None and state.fallback is not None
    if mine and slot.content is Content.CONDEMNED:
        return Standing(Verdict.ROLLED_BACK, spare, slot.reason, running, on_trial)
    if mine and slot.content.runnable:
        return Standing(Verdict.INSTALLED, spare, "", running, on_trial)
    return Standing(Verdict.ABSENT, None, "", running, on_trial)
