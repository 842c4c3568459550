"""Runs the pip of this environment, and says in our words why it failed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.errors import ConfigError, ConnectionFailed, ShoalError

Say = Callable[[str], object]
"""Takes a line for people."""

SOURCE_DATE = "1580601600"
"""What wheels that are built here are dated by, as hatchling does: 2020-02-02."""
_KEPT_LINES = 400
_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
    r"|Network is unreachable|Temporary failure in name resolution|Connection refused"
    r"|Max retries exceeded|Could not fetch URL"
)
_MISSING = re.compile(r"No matching distribution found for ([^\n]+)")
_CONFLICT = re.compile(r"ERROR: (Cannot install [^\n]+)")


class PipFailed(ShoalError):
    """pip did not do what it was asked to.

    Attributes:
        missing: The requirement that it found nothing for; None if that was not the reason.
        output: The end of what it wrote.
    """

    def __init__(self, message: str, missing: str | None = None, output: str = "") -> None:
        super().__init__(message)
        self.missing = missing
        self.output = output


def run_pip(arguments: Sequence[str | Path], say: Say) -> None:
    """Runs pip; what it downloads is told line by line.

    Raises:
        ConfigError: This environment has no pip.
        ConnectionFailed: The package index can't be reached.
        PipFailed: Anything else.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"{sys.executable} has no pip, which fetches wheels: python -m ensurepip --upgrade"
        )
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"),
        *("--no-color", *(str(argument) for argument in arguments)),
    ]
    environment = {"SOURCE_DATE_EPOCH": SOURCE_DATE, **os.environ, "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                lines = [*lines[1 - _KEPT_LINES :], line.rstrip()]
                if line.lstrip().startswith("Downloading "):
                    say(f"  {line.strip().removesuffix('.metadata')}")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _failure("\n".join(lines))


def _failure(output: str) -> ShoalError:
    missing = _MISSING.search(output)
    if _NETWORK.search(output):
        return ConnectionFailed(
            "the package index can't be reached: connect this machine to it once (pip's settings "
            "say which one, such as PIP_INDEX_URL), or give a directory that holds all wheels with "
            "--wheels"
        )
    if missing:
        name = missing[1].strip()
        return PipFailed(f"no wheel of {name}", name, output)
    conflict = _CONFLICT.search(output)
    errors = [line for line in output.splitlines() if line.strip().startswith("ERROR")]
    shown = conflict[1] if conflict else "; ".join(errors[-3:]) or output[-500:]
    return PipFailed(f"pip failed: {' '.join(shown.split())[:600]}", output=output)
