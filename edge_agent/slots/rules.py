"""When a trial is passed and when it has failed: pure rules, and where an operator sets them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_agent.slots.transitions import DEFAULT_MAX_DEATHS, End

EXIT_HUNG, EXIT_SWITCHED, EXIT_EXPIRED, EXIT_ENDED = 74, 75, 76, 70
"""What `run --once` ends with beside 0, the agent's own codes, and 128 plus a signal's number."""
SIGNAL_BASE: Final = 128
_MOST: Final = 1e9
_HUNG: Final = "it hung: nothing was heard of its control loop"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a trial asks for: the table `[trial]` of the agent's configuration.

    Attributes:
        acts: Episodes that it must act; as many chunks, where no episode ends in these.
        deadline_s: Seconds of running without having acted, the network not to blame, after which
            it has failed; over all boots.
        deaths: In one boot, after which it has failed.
    """

    acts: int = 3
    deadline_s: float = 900.0
    deaths: int = DEFAULT_MAX_DEATHS

    @classmethod
    def read(cls, config: Path) -> Rules:
        """Those in a file; where something is wrong with it, what goes without saying.

        The launcher outlives any configuration: the agent says what is wrong with it.
        """
        try:
            table = tomllib.loads(config.read_text("utf-8")).get("trial", {})
        except (OSError, ValueError):
            return cls()
        known = table if isinstance(table, dict) else {}
        return cls(
            acts=int(_positive(known, "acts", cls().acts)),
            deadline_s=_positive(known, "deadline_s", cls().deadline_s),
            deaths=int(_positive(known, "deaths", cls().deaths)),
        )


def has_acted(*, episodes: int, chunks: int, acts: int) -> bool:
    """Whether an agent acted enough: K episodes, or K chunks if no episode ended in them."""
    return episodes >= acts or (chunks >= acts and episodes == 0)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the agent said so far.

    Attributes:
        ready: It is up.
        pinged_s: When it last said that its control loop goes on; monotonic.
        held: What it waits for that it can't be blamed for; empty: for nothing.
        status: One line for people.
    """

    pinged_s: float
    ready: bool = False
    held: str = ""
    status: str = ""

    def hear(self, datagram: bytes, now_s: float) -> Heard:
        """With one more datagram of sd_notify, and our own `X_SHOAL_HELD`."""
        fields = parse(datagram)
        alive = fields.get("WATCHDOG") == "1" or fields.get("READY") == "1"
        return Heard(
            pinged_s=now_s if alive else self.pinged_s,
            ready=self.ready or fields.get("READY") == "1",
            held=fields.get("X_SHOAL_HELD", self.held),
            status=fields.get("STATUS", self.status),
        )

    def hung(self, now_s: float, *, watchdog_s: float, start_s: float) -> bool:
        """Whether too long nothing was heard."""
        return now_s - self.pinged_s > (watchdog_s if self.ready else max(start_s, watchdog_s))


def parse(datagram: bytes) -> dict[str, str]:
    """The assignments of a datagram; what is none is left out."""
    lines = datagram.decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@dataclass(frozen=True, slots=True)
class Charge:
    """How much of a trial's time is used up.

    Attributes:
        trial: Its number; 0: no trial.
        used_s: Seconds of running in which it could have acted.
    """

    trial: int = 0
    used_s: float = field(default=0.0)

    def go_on(self, trial: int, passed_s: float, *, held: bool) -> Charge:
        """After some more time, in the same trial or another."""
        before_s = self.used_s if trial == self.trial else 0.0
        return Charge(trial, before_s + (0.0 if held else max(0.0, passed_s)))


def end_of(environ: Mapping[str, str]) -> tuple[End, bool]:
    """How a service ended, as systemd tells its ExecStopPost; and whether its time was up."""
    result = environ.get("SERVICE_RESULT", "success")
    code, status = environ.get("EXIT_CODE", ""), environ.get("EXIT_STATUS", "")
    if code == "exited" and status == str(EXIT_EXPIRED):
        return End(died=False, reason="its time is up"), True
    if result == "success":
        return End(died=False, reason="it was stopped"), False
    if code == "exited" and status.isdigit():
        return End(died=True, reason=said(int(status))), False
    return End(died=True, reason=f"{result} ({code or 'unknown'} {status})".strip()), False


def said(code: int) -> str:
    """What an exit code of `run --once` says of the agent."""
    if code == EXIT_HUNG:
        return _HUNG
    if code == EXIT_ENDED:
        return "it ended, though nobody asked it to"
    by_signal = code > SIGNAL_BASE
    return (
        f"it was killed by signal {code - SIGNAL_BASE}"
        if by_signal
        else f"it ended with code {code}"
    )


def _positive(table: Mapping[str, object], key: str, default: float) -> float:
    value = table.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST
    return float(value) if good and isinstance(value, int | float) else default
