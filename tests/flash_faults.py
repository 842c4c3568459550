"""The operating system below a flash, with faults in its way. What can be had is not simulated:
`kill -9` is a real one, of a real process that runs this file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from shoalctl.flash.image.block_io import OsBlockIo
from shoalctl.flash.image.command import FlashOptions, FlashReport, run_flash
from shoalctl.flash.image.stages import Stage
from shoalctl.flash.seeds.settings import DeviceSettings

TOKEN = "one-time-token-0815"
INSTANCE = mock.Mock(hex="0123456789abcdef")
SETTINGS = DeviceSettings(hostname="pi-1", token=TOKEN)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a flash is about to do: the `nth` of its kind in its stage, from 0."""

    stage: Stage
    kind: str
    nth: int


Hook = Callable[[Event], None]


class FaultyIo:
    """Both what a flash works with and who hears of it; every event goes through a hook first.

    `write_limit` makes writes short; `flip` is a byte of the target that reads back wrongly in a
    stage.
    """

    def __init__(
        self,
        hook: Hook = lambda _: None,
        *,
        write_limit: int | None = None,
        flip: tuple[Stage, int] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self._hook = hook
        self._write_limit = write_limit
        self._flip = flip
        self._stage = Stage.CHECK
        self._counts: Counter[tuple[Stage, str]] = Counter()
        self._os = OsBlockIo()

    def _event(self, kind: str) -> None:
        event = Event(self._stage, kind, self._counts[self._stage, kind])
        self._counts[self._stage, kind] += 1
        self.events.append(event)
        self._hook(event)

    def begin(self, stage: Stage, total_bytes: int | None) -> None:
        self._stage = stage
        self._event("begin")

    def advance(self, count_bytes: int) -> None:
        self._event("advance")

    def open(self, path: Path, flags: int) -> int:
        self._event("open")
        return self._os.open(path, flags)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        self._event("write")
        return self._os.write(descriptor, data[: self._write_limit], offset)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        self._event("read")
        count = self._os.read(descriptor, buffer, offset)
        if self._flip and self._flip[0] is self._stage and 0 <= self._flip[1] - offset < count:
            buffer[self._flip[1] - offset] ^= 0x40
        return count

    def sync(self, descriptor: int) -> None:
        self._event("sync")
        self._os.sync(descriptor)

    def close(self, descriptor: int) -> None:
        self._os.close(descriptor)


class PowerCut(BaseException):
    """The machine is gone."""


class PowerCutIo(FaultyIo):
    """Loses the power before its nth event: of the writes since the last sync, some are lost.

    The disk is simulated here: it may keep any subset of what was not synced.
    """

    def __init__(self, path: Path, nth: int, seed: int) -> None:
        super().__init__(self._count)
        self._path, self._left, self._random = path, nth, random.Random(seed)
        self._unsynced: list[tuple[int, bytes]] = []

    def _count(self, event: Event) -> None:
        if event.stage.touches_target:
            self._left -= 1
        if self._left < 0:
            raise PowerCut

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        before = os.pread(descriptor, len(data), offset)
        written = super().write(descriptor, data, offset)
        self._unsynced.append((offset, before.ljust(written, b"\0")[:written]))
        return written

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self._unsynced.clear()

    def lose(self) -> None:
        """Takes back some of what was not synced."""
        with self._path.open("r+b") as target:
            for offset, before in reversed(self._unsynced):
                if self._random.random() < 0.5:
                    target.seek(offset)
                    target.write(before)


def flash(
    image: Path,
    to: Path,
    io: FaultyIo | None = None,
    *,
    settings: DeviceSettings = SETTINGS,
    resume: bool = False,
    yes: bool = False,
    expect_size: str | None = None,
    size: str | None = None,
) -> FlashReport:
    """Flashes an image as `shoal flash image` does, with an instance that is always the same."""
    io = io or FaultyIo()
    options = FlashOptions(
        image=image,
        to=to,
        settings=settings,
        resume=resume,
        yes=yes,
        expect_size=expect_size,
        size=size,
    )
    with mock.patch("uuid.uuid4", return_value=INSTANCE):
        return run_flash(options, ask=None, io=io, progress=io)


def killing(stage: str, kind: str, nth: int) -> Hook:
    """Kills this very process before an event."""

    def hook(event: Event) -> None:
        if event == Event(Stage(stage), kind, nth):
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


if __name__ == "__main__":
    image, to, stage, kind, nth = json.loads(sys.argv[1])
    flash(Path(image), Path(to), FaultyIo(killing(stage, kind, nth)))
