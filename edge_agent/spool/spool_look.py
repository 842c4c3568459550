"""A look at a spool from outside: takes nothing, makes nothing, and disturbs no agent."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edge_agent.spool.spool_file import check_version, is_damaged
from shoal.errors import SpoolError


@dataclass(frozen=True, slots=True)
class SpoolLook:
    """What lies on the disk.

    Attributes:
        exists: whether there is a spool.
        in_use: whether a running agent has it; the counts are then not looked at.
        damaged: whether the file is broken; an agent sets it aside and begins anew.
        chunks: chunks that wait for the learner.
        size_bytes: bytes of their bodies.
    """

    exists: bool
    in_use: bool = False
    damaged: bool = False
    chunks: int = 0
    size_bytes: int = 0


def look(path: Path) -> SpoolLook:
    """Looks at a spool.

    Raises:
        SpoolError: an agent could not use it: the directory cannot be written, or a newer version
            of the agent made the file.
    """
    try:
        if not path.exists():
            _check_writable(path.parent)
            return SpoolLook(exists=False)
        if not os.access(path, os.R_OK | os.W_OK):
            raise SpoolError(f"spool {path}: this user may not write it; change its owner")
        _check_writable(path.parent)
        if _is_locked(path):
            return SpoolLook(exists=True, in_use=True)
        return _count(path)
    except OSError as error:
        raise SpoolError(
            f"spool {path}: {error.strerror}; give the agent a state_dir it may write"
        ) from error
    except sqlite3.Error as error:
        if is_damaged(error):
            return SpoolLook(exists=True, damaged=True)
        raise SpoolError(f"spool {path}: {error}") from error


def _check_writable(directory: Path) -> None:
    """The directory, or the nearest one above that exists, as the agent makes the rest."""
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SpoolError(
            f"spool: {there} is not a directory this user may write;"
            " give the agent a state_dir it may write"
        )


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(f"{path}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _count(path: Path) -> SpoolLook:
    # Without a journal beside it the file alone is the spool; opened otherwise, SQLite makes one.
    left = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'' if left else '&immutable=1'}"
    with closing(sqlite3.connect(uri, uri=True)) as db:
        if check_version(db, path) == 0:
            return SpoolLook(exists=True)  # made, and not yet written
        row = db.execute("SELECT count(*), coalesce(sum(size), 0) FROM chunks").fetchone()
        return SpoolLook(exists=True, chunks=int(row[0]), size_bytes=int(row[1]))
