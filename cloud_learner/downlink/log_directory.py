"""The directory of a policy log: one process at a time, and errors that name it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import PolicyLogError, PolicyLogInUse


def take_lock(directory: Path) -> int:
    """Takes the directory for this process; returns the descriptor that holds it.

    Raises:
        PolicyLogInUse: Another process has it.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PolicyLogInUse(
            f"{directory}: another learner has this policy log open: stop it, or use another "
            "state_dir"
        ) from None
    return descriptor


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Names the log in whatever the disk complains about.

    Raises:
        PolicyLogError: The disk complained.
    """
    try:
        yield
    except OSError as error:
        raise PolicyLogError(
            f"{directory}: {error.strerror or error}: check the disk's free space and permissions"
        ) from error
