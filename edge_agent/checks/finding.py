"""What one look of `shoal agent check` or `shoal agent doctor` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.errors import ShoalError


class Level(StrEnum):
    """How a look ended.

    `warn` does not keep an agent from running; `skipped` was not looked at, as what it needs has a
    fault of its own, or is not there.
    """

    OK = "ok"
    WARN = "warn"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found.

    Attributes:
        name: what was looked at.
        level: whether an agent could use it.
        detail: one line for a person: what is there, or what is wrong and what to do.
        exit_code: 0, or the code of the error.
        figures: what was measured, by name; the unit is the end of the name.
    """

    name: str
    level: Level
    detail: str
    exit_code: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether an agent could use it."""
        return self.level in (Level.OK, Level.WARN)

    def as_item(self) -> dict[str, object]:
        """As `agent check -o json` lists it."""
        return {
            "name": self.name,
            "ok": self.ok,
            "level": self.level.value,
            "detail": self.detail,
            "exit_code": self.exit_code,
        }


def exit_code(findings: Sequence[Finding]) -> int:
    """The code of the first fault, or 0."""
    return next((each.exit_code for each in findings if each.level is Level.FAULT), 0)


def fault(name: str, error: ShoalError) -> Finding:
    """What cannot be used, and why."""
    return Finding(name, Level.FAULT, str(error), error.exit_code)


def skipped(name: str, needs: str = "identity") -> Finding:
    """What was not looked at, as what it needs has a fault."""
    return Finding(name, Level.SKIPPED, f"it needs the {needs}, which has a fault")
