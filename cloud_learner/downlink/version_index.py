"""How many optimiser updates each policy version had: kept long after its tensors are gone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shoal.durable_file import write_durably
from shoal.logs import get_logger

MAX_INDEXED_VERSIONS = 65_536
"""How many versions stay indexed; chunks of older ones are over any sensible lag bound."""
_LINE = re.compile(r"(?P<version>\d{1,18}) (?P<updates>\d{1,18});", re.ASCII)  # `;`: not torn

_log = get_logger("version_index")


class VersionIndex:
    """Updates by version, in memory and in an append-only text file.

    The file is a cache of what the manifests say, so appends are not synced: after a power cut the
    entries of retained policies come back from their manifests. Lines that are torn are skipped.

        index = VersionIndex.load(directory / "updates.log")
        index.append(version=7, updates=112)
        index.updates_of(7)  # 112
    """

    def __init__(self, path: Path, updates: Mapping[int, int]) -> None:
        self._path = path
        self._updates = dict(updates)

    @classmethod
    def load(cls, path: Path) -> VersionIndex:
        """Reads the index, skips torn lines, and rewrites it when it holds too many versions.

        Raises:
            OSError: The file cannot be read or rewritten.
        """
        updates: dict[int, int] = {}
        text = path.read_text("ascii", errors="replace") if path.exists() else ""
        lines = text.split("\n")
        for line in lines:
            if match := _LINE.fullmatch(line):
                updates[int(match["version"])] = int(match["updates"])
        kept = dict(sorted(updates.items())[-MAX_INDEXED_VERSIONS:])
        if len(lines) > 2 * MAX_INDEXED_VERSIONS or (text and not text.endswith("\n")):
            rows = "".join(f"{version} {count};\n" for version, count in kept.items())
            write_durably(path, rows.encode("ascii"))
        return cls(path, kept)

    @property
    def highest(self) -> int:
        """The highest version ever indexed; 0 for none."""
        return max(self._updates, default=0)

    def updates_of(self, version: int) -> int | None:
        """Optimiser updates at the publication of `version`; None when it is not known."""
        return self._updates.get(version)

    def append(self, version: int, updates: int) -> None:
        """Adds one version; the newest word about a version holds.

        A disk that refuses costs the entry after a restart, if its policy is pruned by then.
        """
        if self._updates.get(version) == updates:
            return
        self._updates[version] = updates
        if len(self._updates) > MAX_INDEXED_VERSIONS:
            self._updates.pop(next(iter(self._updates)))
        try:
            with self._path.open("ab") as file:
                file.write(f"{version} {updates};\n".encode("ascii"))
        except OSError as error:
            _log.warning("index_not_written", path=str(self._path), problem=str(error))
