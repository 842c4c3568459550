"""Files that survive a crash at any point: the old content or the new, never a mixture.

As `shoal.durable_file`, for what may import nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 1 << 20


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Writes a file; on return its content survives a power cut.

    Raises:
        OSError: The disk is full, read-only or broken; what was there before is as it was.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        # The directory may be another user's: never through a link that lies there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def link_durably(path: Path, target: str) -> None:
    """Has a symbolic link point elsewhere, at once; on return that survives a power cut.

    Raises:
        OSError: It can't be made.
    """
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 the text, not a path
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes creations, renames and removals in a directory durable.

    Raises:
        OSError: It can't be opened or synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file, a link, or a directory with all in it; nothing if it is gone.

    Raises:
        OSError: It can't be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """The content of a plain file that another user may have put there.

    Raises:
        OSError: It is a link, a device, too large, or can't be read.
    """
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(f"{path}: over {limit_bytes} bytes")
    return data


def open_plain(path: Path) -> int:
    """A descriptor to read a plain file by.

    Raises:
        OSError: It is a link, a device, or can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: not a plain file")
    return descriptor


def copy_plain(source: Path, target: Path, limit_bytes: int) -> None:
    """Copies a plain file, at most so much of it.

    Raises:
        OSError: It is no plain file, larger than the limit, or can't be copied.
    """
    with os.fdopen(open_plain(source), "rb") as read, target.open("xb") as write:
        left = limit_bytes
        while piece := read.read(min(_PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise OSError(f"{source}: over {limit_bytes} bytes")
            write.write(piece)
