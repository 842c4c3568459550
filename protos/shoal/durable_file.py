"""Files that survive a crash at any point: the old content or the new, never a mixture."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file being written; one that outlived its writer may be deleted."""


def write_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Writes a file so that a crash leaves the old content or the new.

    Temporary file in the same directory, fsync, `os.replace`, fsync of the directory: on return
    the content survives a power cut. When it raises, nothing is left behind.

    Args:
        path: The file; its directory exists.
        data: The whole content.
        mode: Permission bits of the file.

    Raises:
        OSError: The disk is full, read-only or broken.
    """
    temporary = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes creations, renames and removals in a directory durable.

    Raises:
        OSError: The directory cannot be opened or synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path) -> int:
    """Deletes temporary files that a crashed writer left; returns how many.

    Raises:
        OSError: The directory cannot be read or changed.
    """
    leftovers = list(directory.glob(f"*{TEMPORARY_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)
