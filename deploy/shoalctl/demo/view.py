"""What a person sees of a running demo: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoalctl.demo.drawing import render
from shoalctl.demo.picture import Picture, summary_line

PLAIN_EVERY_S = 1.0


class View(Protocol):
    """Shows pictures; a context manager."""

    def show(self, picture: Picture) -> None:
        """Shows the newest picture."""

    def __enter__(self) -> Self:
        """Starts."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the terminal as it was."""


def make_view(stream: TextIO) -> View:
    """A live view on a terminal, else plain lines."""
    return LiveView(stream) if stream.isatty() else PlainView(stream)


class PlainView:
    """One line a second, and one for each thing that happens."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        """Writes to `stream`."""
        self._stream = stream
        self._next_s = 0.0
        self._noted = 0

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to undo."""

    def show(self, picture: Picture) -> None:
        """Writes what is new."""
        for note in picture.notes[self._noted :]:
            self._say(f"{picture.elapsed_s:6.1f} s  {note}")
        self._noted = len(picture.notes)
        if picture.training is None or picture.elapsed_s < self._next_s:
            return
        self._next_s = picture.elapsed_s + PLAIN_EVERY_S
        self._say(summary_line(picture, picture.training))

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveView:
    """The fleet, the learning curve and the way to the threshold, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        """Draws on `stream`, which must be a terminal."""
        self._console = Console(file=stream)
        self._live = Live(
            Text("starting ..."),
            console=self._console,
            refresh_per_second=8,
            transient=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Takes over the lower part of the terminal."""
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the terminal back."""
        self._live.__exit__(kind, error, trace)

    def show(self, picture: Picture) -> None:
        """Redraws."""
        size = self._console.size
        braille = self._console.encoding.startswith("utf")
        self._live.update(render(picture, width=size.width, height=size.height, braille=braille))
