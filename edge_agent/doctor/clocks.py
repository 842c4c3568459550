"""Whether this machine knows what time it is: its kernel's word, and the fleet's."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Final

from edge_agent.checks.finding import Finding, Level
from edge_agent.enrollment.validity import MAX_SKEW_S, Dates, Trouble, diagnose, length

NOTICEABLE_S: Final = 5.0
"""A difference that a synchronized clock never has."""
_UNSYNCHRONIZED: Final = 0x0040
"""STA_UNSYNC of <sys/timex.h>."""
_ERROR: Final = 5
"""TIME_ERROR: the clock is not synchronized."""


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`; the rest is room that the kernel writes to."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """What is known of a clock.

    Attributes:
        now_s: What it says, Unix seconds.
        synchronized: By the kernel's word; None where it does not tell.
        skew_s: How far the fleet's clock is ahead; None where nobody was asked, or none answered.
    """

    now_s: float
    synchronized: bool | None
    skew_s: float | None = None


def synchronized() -> bool | None:
    """Whether the kernel's clock follows another one; None where it does not tell."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    told = _Timex()  # modes 0: only asks
    state = adjtimex(ctypes.byref(told))
    if state < 0:
        return None
    return state != _ERROR and not told.status & _UNSYNCHRONIZED


def judge_clock(clock: Clock, dates: Dates | None) -> Finding:
    """What a clock, the fleet's and a certificate's dates mean together.

    Args:
        clock: What is known of it.
        dates: When the certificate is valid; None if there is none.
    """
    name = "clock"
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(clock.now_s))
    figures = {} if clock.skew_s is None else {"skew_s": clock.skew_s}
    way = "" if clock.skew_s is None else _difference(clock.skew_s)
    if dates is not None:
        diagnosis = diagnose(dates, clock.now_s, clock.skew_s)
        if diagnosis.trouble is not Trouble.NONE:
            return Finding(name, Level.FAULT, f"{shown}: {diagnosis.message}", 2, figures)
    if clock.skew_s is not None and abs(clock.skew_s) > MAX_SKEW_S:
        detail = f"{shown}, {way}: set it, or mend its time synchronization"
        return Finding(name, Level.FAULT, detail, 1, figures)
    if clock.skew_s is not None and abs(clock.skew_s) > NOTICEABLE_S:
        detail = f"{shown}, {way}: mend its time synchronization (`timedatectl`)"
        return Finding(name, Level.WARN, detail, figures=figures)
    told = {
        True: "the kernel says that it is synchronized",
        False: "not synchronized: start systemd-timesyncd or chrony, else it drifts",
        None: "the kernel does not tell whether it is synchronized",
    }[clock.synchronized]
    level = Level.WARN if clock.synchronized is False else Level.OK
    parts = [shown, *([way] if way else []), told]
    return Finding(name, level, "; ".join(parts), figures=figures)


def _difference(skew_s: float) -> str:
    if abs(skew_s) < 1.0:
        return "within a second of the fleet's"
    return f"{length(abs(skew_s))} {'behind' if skew_s > 0 else 'ahead of'} the fleet's"
