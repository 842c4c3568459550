"""What an image is written to: a whole disk, or a plain file that stands for one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ConfigError, FlashFailed
from shoalctl.flash.image.block_io import BlockIo, size_of
from shoalctl.flash.image.disks import Disk, find_disk
from shoalctl.flash.image.verdict import Reason, Refusal, refusals, sentence
from shoalctl.output import size

_DEVICE_DIRECTORIES = frozenset(
    Path("/dev") / name for name in ("", "mapper", "disk/by-id", "disk/by-path", "disk/by-label")
)
_MISSING = "no such disk: see `shoal flash list`"


@dataclass(frozen=True, slots=True)
class Target:
    """Where an image goes.

    Attributes:
        path: The disk, or the file.
        disk: What is known of the disk; None for a file.
        exists: Whether something is lost by writing.
        size_bytes: How large it is; of a file, what it is to become, None for the image's size.
        limit_bytes: What it can hold at most.
    """

    path: Path
    disk: Disk | None
    exists: bool
    size_bytes: int | None
    limit_bytes: int

    @property
    def identity(self) -> str:
        """Which disk or file this is, whatever it is plugged into."""
        if self.disk is None:
            return f"file {self.path}"
        return f"{self.disk.model or 'disk'} {self.disk.serial or self.path} {self.disk.size_bytes}"

    @property
    def description(self) -> str:
        """What a person recognizes it by."""
        if self.disk is None:
            return f"{self.path}, a file"
        serial = f", serial {self.disk.serial}" if self.disk.serial else ""
        model = self.disk.model or f"a {self.disk.kind} without a name"
        return f"{self.path}: {model}, {size(self.disk.size_bytes)}{serial}"


def find_target(path: Path, *, file_bytes: int | None = None) -> Target:
    """Finds out what is at a path.

    Args:
        path: A disk, a file, or a name in an existing directory.
        file_bytes: How large a file is to become; None for the image's size.

    Raises:
        ConfigError: It is neither, or there is no such disk.
    """
    real = path.resolve()
    try:
        status = real.stat()
    except FileNotFoundError:
        return _new_file(path, real, file_bytes)
    except OSError as error:
        raise ConfigError(f"--to {path}: {error.strerror}") from error
    if stat.S_ISBLK(status.st_mode):
        if file_bytes is not None:
            raise ConfigError(f"--size is for files, and {path} is a disk: leave it out")
        disk = find_disk(real)
        if disk is None:
            raise ConfigError(f"--to {path}: {_MISSING}")
        return Target(
            real, disk, exists=True, size_bytes=disk.size_bytes, limit_bytes=disk.size_bytes
        )
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"--to {path} is neither a disk nor a file: see `shoal flash list`")
    room = shutil.disk_usage(real.parent).free + status.st_blocks * 512
    return Target(real, None, exists=True, size_bytes=file_bytes, limit_bytes=file_bytes or room)


def refused(
    target: Target, *, required_bytes: int = 0, allow_internal: bool = False
) -> tuple[Refusal, ...]:
    """Why a target must not be written to; empty when it may."""
    if target.disk is not None:
        return refusals(target.disk, required_bytes=required_bytes, allow_internal=allow_internal)
    attached = _attached_to(target.path) if target.exists else None
    found = []
    if attached:
        found.append(Refusal(Reason.IN_USE, f"{attached} is this file: losetup --detach it"))
    if target.size_bytes is not None and target.size_bytes < required_bytes:
        detail = f"--size is {size(target.size_bytes)}, and the image needs {size(required_bytes)}"
        found.append(Refusal(Reason.TOO_SMALL, detail))
    return tuple(found)


def check_target(target: Target, *, required_bytes: int = 0, allow_internal: bool = False) -> None:
    """Checks that a target may be written to.

    Raises:
        ConfigError: It must not, with every reason.
    """
    found = refused(target, required_bytes=required_bytes, allow_internal=allow_internal)
    if found:
        raise ConfigError(f"{target.path} is refused: {sentence(found)}")


def check_unchanged(target: Target) -> None:
    """Checks, right before it is opened, that the same disk is still there.

    Raises:
        ConfigError: Another one is, or none.
    """
    if target.disk is None:
        return
    now = find_disk(target.path)
    if now is None:
        raise ConfigError(f"{target.path} is gone: put it in again")
    before = target.disk
    same = (now.number, now.serial, now.model, now.size_bytes) == (
        before.number,
        before.serial,
        before.model,
        before.size_bytes,
    )
    if not same:
        raise ConfigError(f"{target.path} is another disk than before: start again")


def open_exclusive(io: BlockIo, target: Target, *, resume: bool) -> int:
    """Opens a target for writing, so that nobody else uses it meanwhile.

    A disk is opened with `O_EXCL`, which the kernel refuses when any part of it is mounted or in
    use, and which keeps it from being mounted until it is closed. There is no other way in.

    Raises:
        FlashFailed: It is in use, gone, or not ours to write.
    """
    flags = os.O_RDWR | (os.O_EXCL if target.disk else 0)
    if target.disk is None and not target.exists:
        flags |= os.O_CREAT | (0 if resume else os.O_EXCL)
    try:
        descriptor = io.open(target.path, flags)
    except OSError as error:
        raise FlashFailed(_cannot_open(target, error)) from error
    try:
        _check_opened(descriptor, target)
    except (OSError, FlashFailed):
        io.close(descriptor)
        raise
    return descriptor


def _check_opened(descriptor: int, target: Target) -> None:
    if target.disk is None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FlashFailed(f"{target.path} is being written by another process") from error
        return
    number = os.fstat(descriptor).st_rdev
    opened = (f"{os.major(number)}:{os.minor(number)}", size_of(descriptor))
    if opened != (target.disk.number, target.disk.size_bytes):
        raise FlashFailed(f"{target.path} is another disk than before: start again")


def _new_file(path: Path, real: Path, file_bytes: int | None) -> Target:
    if real.parent in _DEVICE_DIRECTORIES:
        raise ConfigError(f"--to {path}: {_MISSING}")
    if not real.parent.is_dir():
        raise ConfigError(f"--to {path}: there is no directory {real.parent}: make it first")
    room = shutil.disk_usage(real.parent).free
    return Target(real, None, exists=False, size_bytes=file_bytes, limit_bytes=file_bytes or room)


def _attached_to(path: Path) -> str | None:
    """The loop device that a file is attached to."""
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if Path(backing.read_text().strip()) == path:
                return f"/dev/{backing.parts[3]}"
        except OSError:
            continue
    return None


def _cannot_open(target: Target, error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return f"{target.path} is in use (was it mounted just now?): umount it and try again"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"{target.path} is not yours to write: try again with sudo"
    if error.errno in {errno.EROFS, errno.ENOMEDIUM, errno.ENXIO, errno.ENODEV, errno.ENOENT}:
        return f"{target.path} can't be written ({error.strerror}): is it in, and not locked?"
    if error.errno == errno.EEXIST:
        return f"{target.path} was made by someone else just now: try again"
    return f"{target.path} can't be opened for writing: {error.strerror}"
