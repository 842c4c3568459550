"""The highest generation of delegates that was accepted, in a directory: it only rises.

00000000000000000002.generation     empty: a name can't be half written
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from shoal.durable_file import sync_directory, write_durably

_NAME: Final = re.compile(r"(\d{20})\.generation", re.ASCII)


class GenerationMark:
    """Remembers a generation through crashes and power cuts.

    mark = GenerationMark(directory)
    mark.rise_to(2)
    GenerationMark(directory).generation      # 2

    Attributes:
        generation: The highest; 0: none was noted.
    """

    def __init__(self, directory: Path) -> None:
        """Reads what is noted there.

        Raises:
            OSError: The directory cannot be read.
        """
        self._directory = directory
        self.generation = max(self._noted(), default=0)

    def rise_to(self, generation: int) -> None:
        """Notes a generation, if it is higher; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written; what was noted before stays.
        """
        if generation <= self.generation:
            return
        write_durably(self._path(generation), b"")
        self.generation = generation
        for older in self._noted():
            if older < generation:
                self._path(older).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _noted(self) -> list[int]:
        names = (_NAME.fullmatch(path.name) for path in self._directory.iterdir())
        return [int(name[1]) for name in names if name]

    def _path(self, generation: int) -> Path:
        return self._directory / f"{generation:020d}.generation"
