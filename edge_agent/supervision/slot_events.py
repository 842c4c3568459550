"""Tells the fleet what happened to the slots of a device, each thing once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge_agent.events import Events
from edge_agent.slots.state import Entry, Happening
from shoal.durable_file import write_durably
from shoal.v1 import device_pb2 as pb

TOLD_NAME: Final = "slot-events-told"
_TOLD: Final = {
    Happening.SWITCHED: pb.SEVERITY_INFO,
    Happening.COMMITTED: pb.SEVERITY_INFO,
    Happening.ROLLED_BACK: pb.SEVERITY_ERROR,
    Happening.REFUSED: pb.SEVERITY_WARNING,
    Happening.INSTALL_FAILED: pb.SEVERITY_WARNING,
    Happening.RECOVERED: pb.SEVERITY_ERROR,
}
_MAX_DIGITS: Final = 20


class SlotEvents:
    """Makes events of the launcher's history.

    SlotEvents(config.state_dir, events).tell(standing.history)
    """

    def __init__(self, state_dir: Path, events: Events) -> None:
        """Reads what was told before.

        Args:
            state_dir: The agent's own.
            events: Where they go.
        """
        self._path = state_dir / TOLD_NAME
        self._events = events
        self._told = _read(self._path)

    def tell(self, history: Sequence[Entry]) -> None:
        """Tells what was not told yet.

        Raises:
            OSError: What was told can't be noted: it may be told again after a restart.
        """
        fresh = [entry for entry in history if entry.number > self._told]
        if history and history[-1].number < self._told:
            fresh = list(history)  # the device was set up anew, and counts from 1 again
        if not fresh:
            return
        for entry in fresh:
            self._emit(entry)
        self._told = fresh[-1].number
        write_durably(self._path, f"{self._told}\n".encode())

    def _emit(self, entry: Entry) -> None:
        severity = _TOLD.get(entry.happening)
        if severity is None:
            return
        release = entry.release
        self._events.emit(
            severity,
            f"slot_{entry.happening}",
            f"slot {entry.slot}: {entry.reason}",
            slot=entry.slot.value,
            bundle_version="" if release is None else release.bundle_version,
            digest="" if release is None else release.digest,
            because=entry.reason,
            number=entry.number,
            at_unix_s=entry.at_unix_s,
        )


def _read(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return int(file.read(_MAX_DIGITS))
    except (OSError, ValueError):
        return 0
