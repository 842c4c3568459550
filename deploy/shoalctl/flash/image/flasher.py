"""Writes a staged image to a target, stage by stage: the one place that knows their order."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from shoal.errors import FlashFailed, ShoalError
from shoalctl.flash.image import verify
from shoalctl.flash.image.block_io import BlockIo, drop_cache, reread_partitions, write_all
from shoalctl.flash.image.fat import FatVolume
from shoalctl.flash.image.journal import FlashJournal
from shoalctl.flash.image.stages import Progress, Stage
from shoalctl.flash.image.staging import Staged
from shoalctl.flash.image.target import Target, open_exclusive
from shoalctl.flash.image.writer import Written, commit, erase, write_body
from shoalctl.flash.seeds import boot_partition
from shoalctl.output import size

_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOENT, getattr(errno, "ENOMEDIUM", 123)})


class FlashInterrupted(KeyboardInterrupt):
    """Ctrl-C during a flash; the text says in which state the target is."""


@dataclass(frozen=True, slots=True)
class Flashed:
    """A flash that came to its end.

    Attributes:
        image_bytes: The size of the image.
        image_sha256: Of the unpacked image, before the seeds.
        duration_s: How long writing and checking took.
        skipped_bytes: What an interrupted flash had written already.
    """

    image_bytes: int
    image_sha256: str
    duration_s: float
    skipped_bytes: int


class Flasher:
    """Writes a staged image.

    Example:
        >>> flasher = Flasher(OsBlockIo(), progress)
        >>> flasher.flash(staged, target, journal, resume=False)
        Flashed(image_bytes=2797600768, ...)
    """

    def __init__(self, io: BlockIo, progress: Progress) -> None:
        self._io = io
        self._progress = progress
        self._stage = Stage.CHECK

    def flash(
        self,
        staged: Staged,
        target: Target,
        journal: FlashJournal,
        *,
        resume: bool,
        expected_sha256: str | None = None,
    ) -> Flashed:
        """Writes, verifies and commits.

        Args:
            staged: What to write.
            target: Where to.
            journal: What is there already, and where progress is noted.
            resume: Whether what the journal says is on the target is left there.
            expected_sha256: What the unpacked image must have, if that is known.

        Raises:
            FlashFailed: It did not work; the text says why, and that the target isn't bootable.
            FlashInterrupted: Ctrl-C; the same.
        """
        started = time.monotonic()
        self._stage = Stage.PREPARE
        with self._explained(target):
            descriptor = open_exclusive(self._io, target, resume=resume)
            try:
                journal.record(0, ())  # from here on, the advice to resume holds
                self._begin(Stage.ERASE, None)
                fresh = target.disk is None and not resume
                if fresh:
                    os.ftruncate(descriptor, 0)
                erase(self._io, descriptor, staged.withheld, both_ends=target.disk is not None)
                written, sha256 = self._write(staged, target, descriptor, journal, holes=fresh)
                if expected_sha256 not in {None, sha256}:
                    raise FlashFailed(
                        f"the unpacked image has the sha256 {sha256}, and {expected_sha256} was "
                        "expected: download it again"
                    )
                if target.disk is None:
                    os.ftruncate(descriptor, target.size_bytes or written.size_bytes)
                self._verify(staged, target, descriptor, written, journal)
                self._commit(staged, target, descriptor, written)
                reread_partitions(descriptor)
            finally:
                self._close(descriptor)
        journal.remove()
        duration_s = time.monotonic() - started
        return Flashed(written.size_bytes, sha256, duration_s, written.skipped_bytes)

    def _write(
        self,
        staged: Staged,
        target: Target,
        descriptor: int,
        journal: FlashJournal,
        *,
        holes: bool,
    ) -> tuple[Written, str]:
        self._begin(Stage.WRITE, staged.source.size_bytes)
        digest = hashlib.sha256()
        with closing(staged.chunks(digest.update)) as chunks:
            written = write_body(
                self._io,
                descriptor,
                chunks,
                staged.withheld,
                journal,
                limit_bytes=target.limit_bytes,
                holes=holes,
                advance=self._progress.advance,
            )
        known = staged.source.size_bytes
        if written.size_bytes != (known or written.size_bytes):
            raise FlashFailed(
                f"the image has {written.size_bytes} bytes, and its file says {known}: "
                "download it again"
            )
        if written.size_bytes < staged.table.end_bytes:
            raise FlashFailed(
                f"the image has {size(written.size_bytes)}, and its partitions need "
                f"{size(staged.table.end_bytes)}: it was cut short, download it again"
            )
        return written, digest.hexdigest()

    def _verify(
        self,
        staged: Staged,
        target: Target,
        descriptor: int,
        written: Written,
        journal: FlashJournal,
    ) -> None:
        self._begin(Stage.VERIFY, written.size_bytes)
        drop_cache(descriptor)
        different = verify.compare_body(
            self._io, target.path, written.size_bytes, written.digests, self._progress.advance
        )
        if different:
            journal.forget(different.indices)
            raise FlashFailed(
                f"{len(different.indices)} of {len(written.digests)} pieces read back otherwise "
                f"than they were written, the first at byte {different.first_bytes}: the card is "
                "worn out or claims more than it holds, if this happens again"
            )
        self._begin(Stage.SEEDS, len(staged.seeds))
        if staged.boot:
            volume = FatVolume(target.path, staged.boot.start_bytes)
            boot_partition.check(volume, staged.seeds, lambda: self._progress.advance(1))

    def _commit(self, staged: Staged, target: Target, descriptor: int, written: Written) -> None:
        self._begin(Stage.COMMIT, None)
        commit(self._io, descriptor, staged.withheld, written.withheld)
        drop_cache(descriptor)
        intact = False
        try:
            intact = verify.equal_ranges(self._io, target.path, staged.withheld, written.withheld)
        finally:
            if not intact:
                block_0 = staged.withheld[-1]
                zeros = bytes(block_0.end_bytes - block_0.start_bytes)
                write_all(self._io, descriptor, zeros, block_0.start_bytes)
                self._io.sync(descriptor)
        if not intact:
            raise FlashFailed("the partition table reads back otherwise than it was written")

    def _begin(self, stage: Stage, total_bytes: int | None) -> None:
        self._stage = stage
        self._progress.begin(stage, total_bytes)

    def _close(self, descriptor: int) -> None:
        self._io.close(descriptor)

    @contextmanager
    def _explained(self, target: Target) -> Iterator[None]:
        """Says of whatever goes wrong in which state the target is, and what to do."""
        try:
            yield
        except KeyboardInterrupt as error:
            raise FlashInterrupted(f"interrupted: {self._state(target)}") from error
        except ShoalError as error:
            if not self._stage.touches_target:
                raise
            raise FlashFailed(f"{self._stage}: {error}. {self._state(target)}") from error
        except OSError as error:
            raise FlashFailed(
                f"{self._stage}: {_why(target, error)}. {self._state(target)}"
            ) from error

    def _state(self, target: Target) -> str:
        if not self._stage.touches_target:
            return f"nothing was written to {target.path}"
        return f"{target.path} is NOT BOOTABLE now: run the same command with --resume to go on"


def _why(target: Target, error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return f"there is no room left for {target.path}"
    if error.errno in _GONE:
        return f"{target.path} is gone: put it in again"
    if error.errno == errno.EIO:
        return f"{target.path} fails or was taken out ({error.strerror})"
    return f"{target.path}: {error.strerror or error}"
