"""The policy versions that an operator wants kept: no retention deletes them."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from shoal.durable_file import write_durably
from shoal.errors import ConfigError, PolicyLogError

MAX_PINS: Final = 64
"""Versions pinned at a time, so that pins alone never fill a disk."""
DAMAGED: Final = "pins_damaged"
"""The condition under which everything is held."""
_FILE: Final = re.compile(rb"((?:[1-9][0-9]{0,18}\n)*)sha256 ([0-9a-f]{64})\n")


class Pins:
    """A set of versions in a text file, one a line, and their sum. Thread-safe: the log asks, too.

    pins = Pins(state.pins)
    pins.put(frozenset({7}))
    pins.versions()              # {7}, and after a restart as well

    Attributes:
        max_pins: How many there may be.
        damage: Why nothing at all is deleted; empty: the file is as it was written.
    """

    def __init__(
        self,
        path: Path,
        *,
        present: Callable[[], Iterable[int]] = tuple,
        max_pins: int = MAX_PINS,
    ) -> None:
        """Reads what is there.

        A file that is damaged names no version. What is there now is held then, until an operator
        says what to keep: which were pinned is not known.

        Args:
            path: Of the file; it may not be there yet.
            present: Says which versions there are.
            max_pins: See `MAX_PINS`.

        Raises:
            PolicyLogError: It cannot be read.
        """
        self.max_pins = max_pins
        self.damage = ""
        self._path = path
        self._writing = threading.Lock()
        self._versions: frozenset[int] = frozenset()
        self._held: frozenset[int] = frozenset()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise PolicyLogError(f"pinned policies {path}: {error.strerror or error}") from error
        versions = _decoded(data)
        if versions is not None:
            self._versions = versions
            return
        self._held = frozenset(present())
        self.damage = (
            f"{path} is damaged, so which policies were pinned is not known: of the "
            f"{len(self._held)} that are kept none is deleted until `shoal policy pin` says what "
            "to keep, or unpin"
        )

    def versions(self) -> frozenset[int]:
        """Those that are pinned."""
        return self._versions

    def kept(self) -> frozenset[int]:
        """Those that may not be deleted: the same, and whatever is held because of damage."""
        return self._versions | self._held

    def put(self, versions: frozenset[int]) -> None:
        """Pins these and no others; on return that survives a power cut.

        Raises:
            ConfigError: They are too many, some of them new.
            PolicyLogError: The disk refuses; then nothing changed.
        """
        if not versions <= self._versions:
            check_number(versions, max_pins=self.max_pins)
        with self._writing:
            before, self._versions = self._versions, self._versions | versions
            try:
                if self.damage:
                    aside = self._path.with_name(f"{self._path.name}.damaged")
                    write_durably(aside, self._path.read_bytes())
                write_durably(self._path, _encoded(versions))
            except OSError as error:
                self._versions = before
                raise PolicyLogError(
                    f"pinned policies {self._path}: {error.strerror or error}"
                ) from error
            self._versions, self._held, self.damage = versions, frozenset(), ""


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


def _encoded(versions: frozenset[int]) -> bytes:
    lines = "".join(f"{version}\n" for version in sorted(versions)).encode("ascii")
    return lines + f"sha256 {hashlib.sha256(lines).hexdigest()}\n".encode("ascii")


def _decoded(data: bytes) -> frozenset[int] | None:
    """The versions of a file; None: it is not as it was written."""
    match = _FILE.fullmatch(data)
    if match is None or hashlib.sha256(match[1]).hexdigest().encode("ascii") != match[2]:
        return None
    return frozenset(map(int, match[1].split()))
