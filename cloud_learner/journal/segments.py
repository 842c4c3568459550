"""Segments: append-only files that hold the bodies of chunks, beside the index that names them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.durable_file import sync_directory
from shoal.logs import get_logger

_SUFFIX: Final = ".segment"
_DIGITS: Final = 10
_AT_ONCE: Final = 512
"""Buffers of one write; systems take 1024."""
_log = get_logger("segments")


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a frame lies.

    Attributes:
        segment: The number of the file.
        start: Of its first byte.
        length: In bytes.
    """

    segment: int
    start: int
    length: int

    @property
    def stop(self) -> int:
        """Of the byte after its last."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Written:
    """Frames that are on the disk, and where; the index does not name them yet."""

    frames: Sequence[bytes]
    extents: Sequence[Extent]


class Segments:
    """Writes frames at the end of the newest segment, and deletes segments that nobody needs.

    Nothing that the index may name is ever overwritten, whatever fails and when. Used by one
    thread at a time.

    segments = Segments(directory, segment_bytes=2**26)
    written = segments.write(frames)       # durable when it returns
    with segments.naming(written):
        ...                                # the index commits
    """

    def __init__(self, directory: Path, *, segment_bytes: int, after: int = 0) -> None:
        """Looks at what is there; each start begins a new segment, when it writes something.

        Args:
            directory: Of the segments; made with the first of them.
            segment_bytes: A segment of this size is not written to any more.
            after: New ones have numbers over this, and over those of all that are there.

        Raises:
            OSError: The directory cannot be read.
        """
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sizes = dict(_found(directory))
        self._newest = max(after, *self._sizes, 0)
        self._open: _Open | None = None
        self._doubtful: Written | None = None

    @property
    def total_bytes(self) -> int:
        """What all segments take on the disk, nearly."""
        return sum(self._sizes.values())

    @property
    def numbers(self) -> frozenset[int]:
        """Those that are there."""
        return frozenset(self._sizes)

    @property
    def writing(self) -> int:
        """The number of the one that is written to; 0 for none."""
        return self._open.number if self._open is not None else 0

    def write(self, frames: Sequence[bytes]) -> Written:
        """Puts frames on the disk, one after the other.

        Frames whose naming failed are where they were when they come again.

        Raises:
            OSError: The disk is full or broken; what was written counts for nothing.
        """
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is not None and doubtful.frames == frames:
            return doubtful
        target = self._target()
        start = target.stop
        extents: list[Extent] = []
        for frame in frames:
            extents.append(Extent(target.number, start, len(frame)))
            start += len(frame)
        try:
            _write_all(target.descriptor, frames, target.stop)
            os.fsync(target.descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(target.descriptor, target.stop)
            raise
        return Written(frames, extents)

    @contextlib.contextmanager
    def naming(self, written: Written) -> Iterator[None]:
        """While the index commits the names of what was written.

        A commit that fails may still be found done after a crash: then these frames stay.
        """
        target, last = self._open, written.extents[-1] if written.extents else None
        if target is not None and last is not None and target.number == last.segment:
            target.stop = self._sizes[target.number] = max(last.stop, target.stop)
        self._doubtful = written
        yield
        self._doubtful = None

    def delete(self, numbers: Iterable[int]) -> frozenset[int]:
        """Deletes segments that the index does not name, as it has committed.

        Returns:
            Those that are gone. One that cannot be deleted stays, and a log line says so.
        """
        gone: set[int] = set()
        for number in numbers:
            if number == self.writing:
                self.close()
            try:
                self._path(number).unlink(missing_ok=True)
                gone.add(number)
            except OSError as error:
                _log.warning("segment_not_deleted", segment=number, error=str(error))
        self._doubtful = None  # a commit went through since
        try:
            sync_directory(self._directory)
        except FileNotFoundError:
            pass  # somebody took them all away
        except OSError as error:
            _log.warning("segments_not_synced", error=str(error))
            return frozenset()
        for number in gone:
            self._sizes.pop(number, None)
        return frozenset(gone)

    def close(self) -> None:
        """Closes the one that is written to; the next write begins another."""
        if self._open is not None:
            os.close(self._open.descriptor)
            self._open = None

    def _target(self) -> _Open:
        """The segment to write to: a new one when the last is full."""
        if self._open is not None and self._open.stop >= self._segment_bytes:
            self.close()
        if self._open is None:
            self._open = self._begun(self._newest + 1)
            self._newest = self._open.number
            self._sizes[self._newest] = 0
        return self._open

    def _begun(self, number: int) -> _Open:
        """A new segment, which a power cut leaves where it is."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._path(number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            sync_directory(self._directory)
            sync_directory(self._directory.parent)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return _Open(number, descriptor, 0)

    def _path(self, number: int) -> Path:
        return self._directory / name_of(number)


@dataclass(slots=True)
class _Open:
    number: int
    descriptor: int
    stop: int


def directory_of(index: Path) -> Path:
    """Where the segments of an index lie: beside it, under its name."""
    return index.with_name(f"{index.name}-segments")


def name_of(number: int) -> str:
    """The name of a segment's file."""
    return f"{number:0{_DIGITS}d}{_SUFFIX}"


def _found(directory: Path) -> Iterator[tuple[int, int]]:
    """Number and size of each segment in a directory, which may be missing."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            number = entry.name.removesuffix(_SUFFIX)
            if number.isdecimal() and name_of(int(number)) == entry.name:
                yield int(number), entry.stat().st_size


def _write_all(descriptor: int, frames: Sequence[bytes], start: int) -> None:
    """Writes frames at an offset, however little the system takes at a time."""
    waiting = [memoryview(frame) for frame in frames]
    while waiting:
        written = os.pwritev(descriptor, waiting[:_AT_ONCE], start)
        start += written
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.pop(0))
        if waiting:
            waiting[0] = waiting[0][written:]
