"""The directory of a policy log: one process at a time, and errors that name it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.errors import PolicyLogError, PolicyLogInUse

_BUNDLE_NAME: Final = re.compile(r"(\d{8,19})\.bundle", re.ASCII)


def versions_directory(directory: Path) -> Path:
    """Where a policy log has its bundles."""
    return directory / "versions"


def bundle_path(directory: Path, version: int) -> Path:
    """Where a policy log has, or would have, the bundle of a version."""
    return versions_directory(directory) / f"{version:08d}.bundle"


def bundle_versions(directory: Path) -> list[int]:
    """The versions whose bundles lie in a policy log, whole or not, lowest first.

    Raises:
        OSError: There is no such log, or it cannot be read.
    """
    names = [path.name for path in versions_directory(directory).iterdir()]
    return sorted(int(match[1]) for name in names if (match := _BUNDLE_NAME.fullmatch(name)))


def take_lock(directory: Path, *, whose: str = "learner", what: str = "policy log") -> int:
    """Takes the directory for this process; returns the descriptor that holds it.

    Args:
        directory: Which.
        whose: Who else might have it, for a message.
        what: What lies there, for a message.

    Raises:
        PolicyLogInUse: Another process has it.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PolicyLogInUse(
            f"{directory}: another {whose} has this {what} open: stop it, or use another state_dir"
        ) from None
    return descriptor


@contextmanager
def disk_errors(
    directory: Path, *, advice: str = "check the disk's free space and permissions"
) -> Iterator[None]:
    """Names the log in whatever the disk complains about.

    Args:
        directory: Which.
        advice: What to do.

    Raises:
        PolicyLogError: The disk complained.
    """
    try:
        yield
    except OSError as error:
        raise PolicyLogError(f"{directory}: {error.strerror or error}: {advice}") from error
