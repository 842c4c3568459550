"""How a flash goes, on stderr: a bar with speed and time left, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from shoalctl.flash.image.stages import Progress, Stage
from shoalctl.output import duration, size

_LINE_INTERVAL_S = 10.0
_COUNTED = frozenset({Stage.SEEDS})
_TITLES = {
    Stage.CHECK: "Checking the image file",
    Stage.PREPARE: "Preparing the boot partition",
    Stage.ERASE: "Erasing the old start",
    Stage.WRITE: "Writing",
    Stage.VERIFY: "Reading back",
    Stage.SEEDS: "Checking the seed files",
    Stage.COMMIT: "Making it bootable",
}


class Lines:
    """One line a stage and one every ten seconds, for logs."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._stage = Stage.CHECK
        self._total: int | None = None
        self._done = 0
        self._started = self._said = clock()

    def begin(self, stage: Stage, total_bytes: int | None) -> None:
        """Says which stage begins."""
        self._stage, self._total, self._done = stage, total_bytes, 0
        self._started = self._said = self._clock()
        self._say(_TITLES[stage])

    def advance(self, count_bytes: int) -> None:
        """Says how far it is, speed and time left, if that was not said for a while."""
        self._done += count_bytes
        now = self._clock()
        if now - self._said < _LINE_INTERVAL_S or self._stage in _COUNTED:
            return
        self._said = now
        speed = self._done / (now - self._started)
        if self._total:
            left_s = max(0, self._total - self._done) / speed if speed else float("nan")
            share = f"{size(self._done)} of {size(self._total)}"
            self._say(f"  {share}, {size(speed)}/s, {duration(left_s)} left")
        else:
            self._say(f"  {size(self._done)}, {size(speed)}/s")

    def _say(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


@contextmanager
def progress_on(out: TextIO) -> Iterator[Progress]:
    """Shows progress on a stream: bars at a terminal, lines elsewhere."""
    if not out.isatty():
        yield Lines(out)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(file=out)) as bars:
        yield _Bars(bars.add_task, bars.update)


class _Bars:
    """One bar a stage."""

    def __init__(self, add: Callable[..., object], update: Callable[..., object]) -> None:
        self._add, self._update = add, update
        self._task: object = None
        self._total: int | None = None

    def begin(self, stage: Stage, total_bytes: int | None) -> None:
        self._end()
        counted = stage in _COUNTED
        self._total = None if counted else total_bytes
        self._task = self._add(_TITLES[stage], total=self._total)
        if counted:
            self._task = None

    def advance(self, count_bytes: int) -> None:
        if self._task is not None:
            self._update(self._task, advance=count_bytes)

    def _end(self) -> None:
        if self._task is not None and self._total is None:
            self._update(self._task, total=1, completed=1)
