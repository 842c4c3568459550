"""How far a file is on its way: a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self


class Upload:
    """Shows progress on stderr, with speed and the time that is left.

    with Upload("bundle.tar", 53_000_000) as upload:
        upload.sent(4096)
    """

    def __init__(self, name: str, total_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task(name, total=total_bytes)

    def __enter__(self) -> Self:
        """Begins to show."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the bar away."""
        self._progress.stop()

    def sent(self, total: int) -> None:
        """So many bytes are on their way."""
        self._progress.update(self._task, completed=total)
