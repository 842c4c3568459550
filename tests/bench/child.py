"""Runs a contestant as a process of its own: one line of JSON comes back, and nothing stays."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Child:
    """How a process went.

    Attributes:
        answer: The last line of its standard output that is JSON; None if there was none.
        failure: Why there was none.
        status: Its exit code; None if it had to be stopped.
        started_s: The monotonic clock when it was started.
        process_s: From its start to its end.
    """

    answer: str | None
    failure: str
    status: int | None
    started_s: float
    process_s: float


def run_child(command: Sequence[str], timeout_s: float, *, cwd: Path | None = None) -> Child:
    """Start a process, and wait until it ends or has to be ended."""
    started_s = now_s()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return Child(None, "did not end: stopped", None, started_s, now_s() - started_s)
        except BaseException:
            _end(process)
            raise
    process_s = now_s() - started_s
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if lines:
        return Child(lines[-1], "", process.returncode, started_s, process_s)
    reason = (err.strip().splitlines() or ["it said nothing"])[-1]
    failure = f"status {process.returncode}: {reason}"
    return Child(None, failure, process.returncode, started_s, process_s)


def now_s() -> float:
    """Seconds of the monotonic clock, which all processes of one machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def say(text: str) -> None:
    """Tell a person how it goes; the result alone is on standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _end(process: subprocess.Popen[str]) -> None:
    """Stop a contestant and what it started: asked first, then made to."""
    process.terminate()
    try:
        process.wait(timeout=15.0)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
