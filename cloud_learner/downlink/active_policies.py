"""What each device really acts with: the base of its next delta, and what may not be deleted.

It is kept in a text file as well, of lines `device_id version digest`, so that after a restart no
version is deleted under a device that is not back yet.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.durable_file import write_durably
from shoal.logs import get_logger
from shoal.policy_delta import Base

MAX_DEVICES: Final = 65_536
"""Devices remembered; of more, those that were silent for longest are forgotten."""
SAVE_INTERVAL_S: Final = 5.0
_LINE = re.compile(r"([a-z0-9-]{1,63}) (\d{1,19}) ([0-9a-f]{64})", re.ASCII)
_log = get_logger("active_policies")


@dataclass(frozen=True, slots=True)
class Active:
    """What one device acts with.

    Attributes:
        base: The version and its digest.
        run_id: Of the process that said so; empty where a watch said it.
    """

    base: Base
    run_id: bytes


class ActivePolicies:
    """Folds what devices say into what each has now. Thread-safe: the policy log asks as well.

    active = ActivePolicies()
    active.note("pi-1", Base(7, digest), run_id)
    active.of("pi-1").base.version       # 7
    """

    def __init__(self, path: Path | None = None, *, max_devices: int = MAX_DEVICES) -> None:
        """Begins with what was saved; lines that are damaged are skipped.

        Args:
            path: Of the file; None: nothing is saved.
            max_devices: See `MAX_DEVICES`.
        """
        self._path = path
        self._max_devices = max_devices
        self._devices: dict[str, Active] = {}  # the longest silent first
        self._lock = threading.Lock()
        self._saved = True
        if path is not None and path.exists():
            for line in path.read_text("ascii", errors="replace").splitlines():
                if match := _LINE.fullmatch(line):
                    self.note(match[1], Base(int(match[2]), bytes.fromhex(match[3])))

    def note(self, device_id: str, base: Base, run_id: bytes = b"") -> None:
        """Notes what a device has; version 0 stands for nothing."""
        with self._lock:
            self._devices.pop(device_id, None)
            if base.version:
                self._devices[device_id] = Active(base, run_id)
            while len(self._devices) > self._max_devices:
                self._devices.pop(next(iter(self._devices)))
            self._saved = False

    def save(self) -> None:
        """Writes what changed; a disk that refuses costs what is known after a restart."""
        if self._path is None:
            return
        with self._lock:
            if self._saved:
                return
            self._saved = True
            lines = [
                f"{device_id} {active.base.version} {active.base.digest.hex()}\n"
                for device_id, active in self._devices.items()
            ]
        try:
            write_durably(self._path, "".join(lines).encode("ascii"))
        except OSError as error:
            self._saved = False
            _log.warning("active_not_saved", path=str(self._path), problem=str(error))

    async def save_often(self) -> None:
        """Saves at an interval, and at the end, for ever."""
        try:
            while True:
                await asyncio.sleep(SAVE_INTERVAL_S)
                await asyncio.to_thread(self.save)
        finally:
            self.save()

    def of(self, device_id: str) -> Active | None:
        """What one device has; None: nothing, or it never said."""
        return self._devices.get(device_id)

    def versions(self) -> frozenset[int]:
        """The versions that any device has."""
        with self._lock:
            return frozenset(active.base.version for active in self._devices.values())


InUse = Callable[[], Collection[int]]
"""Says which versions devices have."""
