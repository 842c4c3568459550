"""Which slot this agent runs in: what the launcher wrote down, read again when it changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_agent.slots import codec
from edge_agent.slots.state import Entry, Name, Slot, State, Trial
from shoal.logs import get_logger
from shoal.v1 import slot_pb2 as pb

log = get_logger("slot_file")


@dataclass(frozen=True, slots=True)
class Standing:
    """How the slot of this agent stands.

    Attributes:
        name: Which one.
        slot: What is in it.
        trial: Of it; None when there is none.
        history: Of both slots, oldest first.
    """

    name: Name
    slot: Slot
    trial: Trial | None
    history: tuple[Entry, ...]

    @classmethod
    def of(cls, state: State, name: Name) -> Standing:
        """Of one slot in a state."""
        trial = state.trial if state.current is name else None
        return cls(name, state.slot(name), trial, state.history)

    def report(self, held: str) -> pb.SlotReport:
        """What the fleet is told of it.

        Args:
            held: What the agent waits for without being to blame; empty: for nothing.
        """
        release, newest = self.slot.release, self.history[-1] if self.history else None
        return pb.SlotReport(
            slot=self.name,
            bundle_version="" if release is None else release.bundle_version,
            digest=b"" if release is None else _hex(release.digest),
            trial=pb.TRIAL_STATE_COMMITTED if self.trial is None else pb.TRIAL_STATE_ON_TRIAL,
            deaths=0 if self.trial is None else self.trial.deaths,
            held=held,
            last="" if newest is None else f"{newest.happening} {newest.slot}: {newest.reason}",
        )


class SlotFile:
    """The launcher's file, for the agent that it started.

    slots = SlotFile.from_environ(os.environ)
    slots.standing  # None where no launcher started this agent
    """

    def __init__(self, path: Path | None, name: Name | None) -> None:
        """Reads nothing yet.

        Args:
            path: The file; None where there is no launcher.
            name: The slot of this agent.
        """
        self._path = path
        self._name = name
        self._seen: tuple[int, int, int] | None = None
        self.standing: Standing | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> SlotFile:
        """As the launcher says in the environment of its child."""
        path, name = environ.get("SHOAL_SLOTS_FILE"), environ.get("SHOAL_SLOT")
        if not path or name not in list(Name):
            return cls(None, None)
        return cls(Path(path), Name(name))

    def report(self, held: str = "") -> pb.SlotReport | None:
        """What the fleet is told of the slot; None where no launcher started this agent."""
        return None if self.standing is None else self.standing.report(held)

    def refresh(self) -> None:
        """Reads the file if it changed; keeps what is known where it can't be read."""
        if self._path is None or self._name is None:
            return
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return
            self.standing = Standing.of(codec.decode(self._path.read_bytes()), self._name)
            self._seen = seen
        except (OSError, codec.Malformed) as error:
            log.warning("slots_unreadable", path=str(self._path), error=str(error))


def _hex(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError:
        return b""
