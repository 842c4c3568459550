"""What is installed in the two slots, which of them runs, and whether it is on trial: values.

Everything in `edge_agent.slots` needs the standard library alone: the system's python3 runs a copy
of it, beside and whatever is installed in the slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

MAX_HISTORY: Final = 64
"""Entries of the history that are kept; the oldest go first."""
MAX_REASON_CHARACTERS: Final = 300


class Name(StrEnum):
    """A slot."""

    A = "a"
    B = "b"

    @property
    def other(self) -> Name:
        """The one beside it."""
        return Name.B if self is Name.A else Name.A


class Content(StrEnum):
    """What is in a slot."""

    EMPTY = "empty"
    INSTALLING = "installing"  # half there: nothing of it may run
    INSTALLED = "installed"  # whole, and its health check passed; it never acted
    COMMITTED = "committed"  # it acted
    CONDEMNED = "condemned"  # it was left for the other slot, see its reason

    @property
    def runnable(self) -> bool:
        """Whether the agent in it may be gone back to."""
        return self in (Content.INSTALLED, Content.COMMITTED)


class Happening(StrEnum):
    """What an entry of the history tells of."""

    INSTALLED = "installed"
    INSTALL_FAILED = "install_failed"
    SWITCHED = "switched"
    DIED = "died"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Release:
    """What a bundle holds.

    Attributes:
        digest: sha256 of its manifest.json, hexadecimal; it names the bundle.
        bundle_version: of the bundle.
        shoal_version: of the agent in it.
    """

    digest: str
    bundle_version: str
    shoal_version: str


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot.

    Attributes:
        release: What is in it, or was being put there; None when it is empty.
        reason: Why it is in this state, for people.
    """

    content: Content = Content.EMPTY
    release: Release | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The current slot has to act before it counts as working.

    Attributes:
        number: Tells it from trials before it.
        reason: Why it was switched to.
        since_unix_s: Wall clock, for people.
        boot_id: The boot in which the deaths were counted.
        deaths: How often its agent died in that boot.
    """

    number: int
    reason: str
    since_unix_s: int
    boot_id: str
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened.

    Attributes:
        number: Counts from 1, never twice.
        at_unix_s: Wall clock, for people.
        happening: What.
        slot: Where; of a switch and a rollback: to which.
        release: Of that slot then.
        reason: Why.
    """

    number: int
    at_unix_s: int
    happening: Happening
    slot: Name
    release: Release | None
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happens.

    Attributes:
        unix_s: Wall clock, for people: a device's may be wrong.
        boot_id: The kernel's; another one means that the power was cut, or it was rebooted.
    """

    unix_s: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class State:
    """All of it; `edge_agent.slots.transitions` makes the next one from it.

    Attributes:
        current: The slot that runs; None before the first installation.
        trial: Of the current slot; None when it is committed.
        running_boot_id: The boot in which the agent was started, and its end not yet noted.
        history: Oldest first, at most `MAX_HISTORY`.
        entries: How many there ever were.
    """

    current: Name | None = None
    trial: Trial | None = None
    running_boot_id: str | None = None
    a: Slot = field(default_factory=Slot)
    b: Slot = field(default_factory=Slot)
    history: tuple[Entry, ...] = ()
    entries: int = 0

    def slot(self, name: Name) -> Slot:
        """The slot of that name."""
        return self.a if name is Name.A else self.b

    @property
    def spare(self) -> Name:
        """The slot that doesn't run: where the next bundle goes, or what is gone back to."""
        return self.current.other if self.current is not None else Name.A

    @property
    def fallback(self) -> Name | None:
        """The slot that can be gone back to; None if there is none."""
        if self.current is None or not self.slot(self.spare).content.runnable:
            return None
        return self.spare

    def put(self, name: Name, slot: Slot) -> State:
        """The same with another slot in place of one."""
        return replace(self, a=slot) if name is Name.A else replace(self, b=slot)

    def note(self, now: Moment, happening: Happening, slot: Name, reason: str) -> State:
        """The same with another entry in its history."""
        entry = Entry(
            self.entries + 1, now.unix_s, happening, slot, self.slot(slot).release, cut(reason)
        )
        return replace(
            self, history=(*self.history, entry)[-MAX_HISTORY:], entries=self.entries + 1
        )


def cut(reason: str) -> str:
    """A reason on one line, not too long."""
    line = " ".join(reason.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 3]}..."


class Refused(Exception):
    """It can't be done from this state; `str()` says why and what to do."""

    exit_code = 1

    @classmethod
    def because(cls, *sentences: str) -> Self:
        """A refusal in several parts."""
        return cls("; ".join(sentences))
