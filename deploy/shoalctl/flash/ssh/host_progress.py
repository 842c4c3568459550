"""How it goes on many hosts, on stderr: a bar each at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, TextIO

from shoalctl.flash.ssh.plan import Step
from shoalctl.output import duration, printable, size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_INTERVAL_S = 10.0
TITLES = {
    Step.CONNECT: "connecting",
    Step.PREFLIGHT: "looking",
    Step.LOCK: "locking",
    Step.UPLOAD: "uploading",
    Step.UNPACK: "unpacking",
    Step.TOKEN: "enrolling",
    Step.INSTALL: "installing",
    Step.SWITCH: "switching",
    Step.RESTART: "restarting",
    Step.WAIT: "on trial",
    Step.CLEAN: "cleaning up",
    Step.ROLLBACK: "going back",
}


class HostProgress(Protocol):
    """Hears how it goes on hosts."""

    def begin(self, host: str, step: Step, total_bytes: int | None = None) -> None:
        """A step begins; `total_bytes` where it has a known length."""
        ...

    def advance(self, host: str, count_bytes: int) -> None:
        """So much more of the step is done."""
        ...

    def say(self, host: str, text: str) -> None:
        """Something a person should know."""
        ...

    def end(self, host: str, text: str) -> None:
        """It is over there."""
        ...

    def pausing(self) -> AbstractContextManager[object]:
        """While a person types, nothing is drawn."""
        ...


class Lines:
    """One line a step, and one every ten seconds of an upload."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._uploads: dict[str, _Upload] = {}

    def begin(self, host: str, step: Step, total_bytes: int | None = None) -> None:
        """Says which step begins."""
        if step is Step.UPLOAD:
            self._uploads[host] = _Upload(total_bytes or 0, self._clock())
        self.say(host, TITLES[step])

    def advance(self, host: str, count_bytes: int) -> None:
        """Says how far the upload is, if that was not said for a while."""
        upload, now = self._uploads[host], self._clock()
        upload.done += count_bytes
        if now - upload.said < _LINE_INTERVAL_S:
            return
        upload.said = now
        speed = upload.done / (now - upload.started)
        left_s = (upload.total - upload.done) / speed if speed else float("nan")
        share = f"{size(upload.done)} of {size(upload.total)}"
        self.say(host, f"  {share}, {size(speed)}/s, {duration(left_s)} left")

    def say(self, host: str, text: str) -> None:
        """Writes a line."""
        self._out.write(f"{host}: {printable(text)}\n")
        self._out.flush()

    def end(self, host: str, text: str) -> None:
        """Writes the last line."""
        self.say(host, text)

    def pausing(self) -> AbstractContextManager[object]:
        """Nothing is drawn anyway."""
        return nullcontext()


class _Upload:
    def __init__(self, total: int, now: float) -> None:
        self.total = total
        self.done = 0
        self.started = self.said = now


@contextmanager
def host_progress_on(out: TextIO) -> Iterator[HostProgress]:
    """Shows progress on a stream: bars at a terminal, lines elsewhere."""
    if not out.isatty():
        yield Lines(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.fields[host]}"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=out)) as bars:
        yield _Bars(bars)


class _Bars:
    """One bar a host."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def begin(self, host: str, step: Step, total_bytes: int | None = None) -> None:
        task = self._task(host)
        self._bars.reset(task, total=total_bytes, description=TITLES[step])

    def advance(self, host: str, count_bytes: int) -> None:
        self._bars.advance(self._task(host), count_bytes)

    def say(self, host: str, text: str) -> None:
        self._bars.console.print(f"{host}: {printable(text)}", markup=False, highlight=False)

    def end(self, host: str, text: str) -> None:
        task = self._task(host)
        self._bars.update(task, description=printable(text)[:60], total=1, completed=1)
        self._bars.stop_task(task)

    @contextmanager
    def pausing(self) -> Iterator[None]:
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()

    def _task(self, host: str) -> TaskID:
        if host not in self._tasks:
            self._tasks[host] = self._bars.add_task("waiting", total=None, host=host)
        return self._tasks[host]
