"""What `shoal agent diag` collects: chosen item by item, bounded, and without secrets."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.checks.finding import Finding
from edge_agent.config import AgentConfig
from edge_agent.doctor.command import envelope
from edge_agent.doctor.scrubber import Scrubber
from edge_agent.policies.policy_files import list_files
from edge_agent.slots import codec
from edge_agent.slots.layout import AGENT_UNIT
from edge_agent.spool.spool_look import look
from edge_agent.status import version_of
from shoal.errors import ShoalError
from shoal.identity import KEY_FILE

MAX_ENTRY_BYTES: Final = 512 * 1024
MAX_SECRET_FILE_BYTES: Final = 64 * 1024
MAX_LOG_LINES: Final = 1000
MAX_LINE_CHARACTERS: Final = 2000
MAX_POLICIES: Final = 1000
LOG_TIMEOUT_S: Final = 15.0
DISTRIBUTIONS: Final = (
    *("shoal", "onnxruntime", "numpy", "grpcio", "protobuf", "paho-mqtt", "gymnasium"),
    *("zstandard", "cryptography"),
)
SHOWN_TEXTS: Final = frozenset(
    {
        *("fleet", "identity", "state_dir", "mode", "env.id", "actor.before_policy"),
        *("actor.precision", "broker.host", "parameter_server.host"),
        *("gradients.codec", "gradients.worker"),
    }
)
"""Texts of the configuration that are no secrets; numbers and switches are none."""
_FREE: Final = "env.kwargs."
"""Under it lies what a user's own environment is given, which may be anything."""
MIN_VARIABLE_CHARACTERS: Final = 6
_HARMLESS: Final = frozenset(
    {
        *("PATH", "HOME", "PWD", "OLDPWD", "SHELL", "TERM", "USER", "LOGNAME", "TMPDIR"),
        *("HOSTNAME", "VIRTUAL_ENV", "INVOCATION_ID", "JOURNAL_STREAM", "STATE_DIRECTORY"),
    }
)
"""Variables whose values say what every line of a log does; all others count as secrets."""


def collect_entries(
    config: AgentConfig, findings: Sequence[Finding], *, prefix: Path, environ: Mapping[str, str]
) -> Mapping[str, bytes]:
    """Everything, by the name of its file.

    Args:
        config: Of the agent.
        findings: Of the doctor.
        prefix: Where slots are installed.
        environ: This process's variables: none is collected, and their values are removed wherever
            they turn up.
    """
    scrubber = Scrubber(known_secrets(config, environ))
    tables: dict[str, object] = {
        "doctor.json": envelope(findings),
        "config.json": shown_config(config),
        "versions.json": versions(),
        "policies.json": policies(config.policies_dir),
        "spool.json": spool(config.spool_path),
    }
    slots = read_slots(prefix / "slots.json")
    if slots is not None:
        tables["slots.json"] = slots
    entries = {
        name: json.dumps(scrubber.scrub_value(table), indent=1).encode() + b"\n"
        for name, table in tables.items()
    }
    log = read_log()
    if log is not None:
        entries["log.txt"] = "".join(f"{scrubber.scrub(line)}\n" for line in log).encode()
    return {name: content[-MAX_ENTRY_BYTES:] for name, content in entries.items()}


def known_secrets(config: AgentConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """What must be in nothing that is collected."""
    leaves = dict(_leaves(config))
    for key, value in leaves.items():
        if key.startswith(_FREE) or (isinstance(value, str) and key not in SHOWN_TEXTS):
            yield str(value)
    shown = {leaves.get(key) for key in SHOWN_TEXTS}
    for name, text in environ.items():
        harmless = name in _HARMLESS or name.startswith("LC_") or text in shown
        if not harmless and len(text) >= MIN_VARIABLE_CHARACTERS:
            yield text
    for path in (
        config.identity / KEY_FILE,
        config.state_dir / "enrolment-token",
        config.identity / "token",
    ):
        yield from _secret_lines(path)


def shown_config(config: AgentConfig) -> Mapping[str, object]:
    """The configuration by dotted keys; texts only where they are known to be no secrets."""
    return {
        key: value if _is_shown(key, value) else f"[not shown: {type(value).__name__}]"
        for key, value in _leaves(config)
    }


def versions() -> Mapping[str, object]:
    """Of what the agent is made, and of what lies under it."""
    libc = " ".join(platform.libc_ver())
    return {
        **{name: version_of(name) for name in DISTRIBUTIONS},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "libc": libc,
        "system": _system(),
    }


def policies(directory: Path) -> Sequence[Mapping[str, object]]:
    """The versions on the disk, newest first: numbers and digests, no weights."""
    try:
        trusts = [path for path in sorted(directory.iterdir()) if path.is_dir()]
        found = [(trust.name, each) for trust in trusts for each in list_files(trust)]
    except OSError:
        return []
    return [
        {
            "trust": trust,
            "version": each.version,
            "manifest_digest": each.manifest_digest.hex(),
            "condemned": each.condemned,
        }
        for trust, each in found[:MAX_POLICIES]
    ]


def spool(path: Path) -> Mapping[str, object]:
    """How much waits."""
    try:
        seen = look(path)
    except ShoalError as error:
        return {"fault": str(error)}
    return {
        "exists": seen.exists,
        "in_use": seen.in_use,
        "damaged": seen.damaged,
        "chunks": None if seen.in_use else seen.chunks,
        "size_bytes": None if seen.in_use else seen.size_bytes,
    }


def read_slots(path: Path) -> Mapping[str, object] | None:
    """What is installed beside what, and why; None where there are no slots."""
    try:
        with path.open("rb") as file:
            return codec.as_dict(codec.decode(file.read(MAX_ENTRY_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"fault": str(error)}


def read_log() -> Sequence[str] | None:
    """The last lines of the agent's unit; None where there is no journal."""
    command = ["journalctl", "--unit", AGENT_UNIT, "--no-pager", "--output", "short-iso"]
    try:
        done = subprocess.run(
            [*command, "--lines", str(MAX_LOG_LINES)],
            capture_output=True,
            timeout=LOG_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()[-MAX_LOG_LINES:]
    return [line[:MAX_LINE_CHARACTERS] for line in lines]


def _is_shown(key: str, value: object) -> bool:
    free = key.startswith(_FREE)
    return key in SHOWN_TEXTS or (not free and isinstance(value, int | float | bool | None))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """Every value of a configuration, with its dotted key."""
    dot = f"{path}." if path else ""
    if is_dataclass(value):
        for each in fields(value):
            yield from _leaves(getattr(value, each.name), f"{dot}{each.name}")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{dot}{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{dot}{number}")
    else:
        yield path, str(value) if isinstance(value, os.PathLike) else value


def _secret_lines(path: Path) -> Iterator[str]:
    """A secret file as a whole and line by line: each alone would tell too much."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    yield text
    yield from (line for line in text.splitlines() if not line.startswith("-----"))


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""
