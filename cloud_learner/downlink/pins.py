"""The policy versions that an operator wants kept: no retention deletes them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Final

from shoal.durable_file import write_durably
from shoal.errors import ConfigError, PolicyLogError

MAX_PINS: Final = 64
"""Versions pinned at a time, so that pins alone never fill a disk."""
_LINE: Final = re.compile(r"[1-9]\d{0,18}", re.ASCII)


class Pins:
    """A set of versions in a text file, one a line. Thread-safe: the policy log asks as well.

    pins = Pins(state.pins)
    pins.put(frozenset({7}))
    pins.versions()              # {7}, and after a restart as well
    """

    def __init__(self, path: Path, *, max_pins: int = MAX_PINS) -> None:
        """Reads what is there.

        Args:
            path: Of the file; it may not be there yet.
            max_pins: See `MAX_PINS`.

        Raises:
            PolicyLogError: It cannot be read, or holds something else.
        """
        self.max_pins = max_pins
        self._path = path
        self._writing = threading.Lock()
        self._versions: frozenset[int] = frozenset()
        try:
            lines = path.read_text("ascii").splitlines()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise PolicyLogError(f"pinned policies {path}: {error}") from error
        if not all(_LINE.fullmatch(line) for line in lines):
            raise PolicyLogError(
                f"pinned policies {path}: damaged; restore it, or delete it: then retention may "
                "delete the versions that were pinned"
            )
        self._versions = frozenset(map(int, lines))

    def versions(self) -> frozenset[int]:
        """Those that are pinned."""
        return self._versions

    def put(self, versions: frozenset[int]) -> None:
        """Pins these and no others; on return that survives a power cut.

        Raises:
            ConfigError: They are too many.
            PolicyLogError: The disk refuses; then nothing changed.
        """
        check_number(versions, max_pins=self.max_pins)
        with self._writing:
            lines = "".join(f"{version}\n" for version in sorted(versions))
            before, self._versions = self._versions, self._versions | versions
            try:
                write_durably(self._path, lines.encode("ascii"))
            except OSError as error:
                self._versions = before
                raise PolicyLogError(
                    f"pinned policies {self._path}: {error.strerror or error}"
                ) from error
            self._versions = versions


def check_number(versions: frozenset[int], *, max_pins: int) -> None:
    """Refuses more pins than there may be.

    Raises:
        ConfigError: They are too many; it names the oldest.
    """
    if len(versions) > max_pins:
        raise ConfigError(
            f"{max_pins} policy versions are pinned already: unpin one first, such as "
            f"`shoal policy unpin v{min(versions)}`"
        )
