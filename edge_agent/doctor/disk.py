"""The disk under an agent: room, and whether it can be written. Leaves nothing behind."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.checks.finding import Finding, Level
from edge_agent.config import AgentConfig
from edge_agent.spool.spool_look import look
from shoal.errors import ShoalError

MIB: Final = 1024 * 1024
LEAST_BYTES: Final = 16 * MIB
"""With less than this, not even a policy and a few chunks fit."""
LEAST_INODES: Final = 64
SLOW_SYNC_S: Final = 0.5
FULL: Final = 0.8
"""The part of a spool that is full when somebody should ask why."""
_PROBE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Room:
    """What a file system has left.

    Attributes:
        free_bytes: For this user.
        free_inodes: None where files are not numbered in advance.
        sync_s: How long 4 KiB took to be on the disk.
    """

    free_bytes: int
    free_inodes: int | None
    sync_s: float


def look_at_disk(config: AgentConfig) -> Finding:
    """Room and writability of the agent's own directory."""
    name, directory = "disk", _there(config.state_dir)
    try:
        room = _measure(directory)
    except OSError as error:
        cure = (
            "it is mounted read-only: a failing card ends so; look at `dmesg`"
            if error.errno == errno.EROFS
            else "give the agent a state_dir it may write, and make room there"
        )
        return Finding(name, Level.FAULT, f"{directory}: {error.strerror}; {cure}", 1)
    return judge_room(directory, room, config.spool.max_bytes, _used(config.spool_path))


def judge_room(directory: Path, room: Room, spool_max_bytes: int, spool_bytes: int) -> Finding:
    """What is left means.

    Args:
        directory: For the message.
        room: What is left.
        spool_max_bytes: What the spool may come to hold.
        spool_bytes: What it takes now.
    """
    name = "disk"
    figures = {"free_bytes": float(room.free_bytes), "sync_ms": room.sync_s * 1000}
    said = f"{directory}: {room.free_bytes // MIB} MiB free, 4 KiB written in {_ms(room.sync_s)} ms"
    if room.free_bytes < LEAST_BYTES:
        detail = f"{said}: make room, else nothing can be kept"
        return Finding(name, Level.FAULT, detail, 1, figures)
    if room.free_inodes is not None and room.free_inodes < LEAST_INODES:
        detail = f"{said}; {room.free_inodes} more files fit: remove some"
        return Finding(name, Level.FAULT, detail, 1, figures)
    if room.free_bytes < spool_max_bytes - spool_bytes:
        more = (spool_max_bytes - spool_bytes) // MIB
        detail = f"{said}; the spool may grow by {more} MiB: make room, or lower spool.max_bytes"
        return Finding(name, Level.WARN, detail, figures=figures)
    if room.sync_s > SLOW_SYNC_S:
        detail = f"{said}: a slow or worn card; acting goes on, but little can be kept a second"
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, said, figures=figures)


def look_at_spool(config: AgentConfig) -> Finding:
    """How full the spool is; a running agent is not disturbed, its file is measured."""
    name, path, most = "spool", config.spool_path, config.spool.max_bytes
    try:
        seen = look(path)
    except ShoalError as error:
        return Finding(name, Level.FAULT, str(error), error.exit_code)
    if not seen.exists:
        return Finding(name, Level.OK, f"{path}: none yet; the agent makes it")
    if seen.damaged:
        detail = f"{path}: damaged; the agent sets it aside and begins a new one"
        return Finding(name, Level.WARN, detail)
    used = _used(path) if seen.in_use else seen.size_bytes
    held = "in use by a running agent" if seen.in_use else f"{seen.chunks} chunks wait"
    figures = {"used_bytes": float(used), "max_bytes": float(most)}
    if not seen.in_use:
        figures["chunks"] = float(seen.chunks)
    said = f"{path}: {held}, {used / MIB:.1f} of {most / MIB:.0f} MiB"
    if used >= FULL * most:
        detail = f"{said}: soon the oldest are dropped; see below why none leave"
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, said, figures=figures)


def _measure(directory: Path) -> Room:
    stats = os.statvfs(directory)
    began_s = time.monotonic()
    descriptor, path = tempfile.mkstemp(prefix=".doctor-", dir=directory)
    try:
        os.write(descriptor, bytes(_PROBE_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        Path(path).unlink()
    return Room(
        free_bytes=stats.f_bavail * stats.f_frsize,
        free_inodes=stats.f_favail if stats.f_files else None,
        sync_s=time.monotonic() - began_s,
    )


def _there(directory: Path) -> Path:
    """The directory, or the nearest one above that exists: the agent makes the rest."""
    candidates = (directory.absolute(), *directory.absolute().parents)
    return next(each for each in candidates if each.is_dir())


def _used(path: Path) -> int:
    """Bytes of a database and its log."""
    total = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        try:
            total += each.stat().st_size
        except OSError:
            continue
    return total


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
