"""One process at a time uses a spool."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import SpoolError, SpoolInUse


@contextlib.contextmanager
def spool_lock(path: Path) -> Iterator[None]:
    """Holds the spool at `path` for this process, within the block; a killed one lets go of it.

    Raises:
        SpoolError: another process holds it, or its directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SpoolError(
            f"spool {path}: {error.strerror}; give the agent a state_dir it may write"
        ) from error
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SpoolInUse(
                f"another agent uses {path}: stop it, or give this one its own state_dir"
            ) from error
        yield
    finally:
        os.close(lock_fd)
