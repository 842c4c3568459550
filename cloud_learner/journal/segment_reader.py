"""Reads what lies in segments, beside whoever writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from cloud_learner.journal.segments import Extent, name_of


class SegmentReader:
    """Reads frames, wherever they lie. Used by one thread at a time.

    >>> with SegmentReader(directory) as reader:
    ...     frame = reader.read(extent)
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, extent: Extent) -> bytes:
        """What lies there; shorter where the segment ends before.

        Raises:
            FileNotFoundError: The segment is gone.
            OSError: It cannot be read.
        """
        if extent.segment != self._number:
            self.close()
            path = self._directory / name_of(extent.segment)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._number = extent.segment
        there = os.fstat(self._descriptor).st_size - extent.start
        return os.pread(self._descriptor, max(0, min(extent.length, there)), extent.start)

    def close(self) -> None:
        """Closes what is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._number = -1, 0
