"""How far a long read is, on stderr: a bar at a terminal, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TextIO, TypeVar

LINE_S: Final = 10.0
"""Between two lines where there is no terminal."""
_Item = TypeVar("_Item")


def reading(
    items: Iterable[_Item],
    what: str,
    *,
    total: int | None,
    out: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[_Item]:
    """Gives the items, and says how many there were.

    for chunk in reading(journal.chunks(run), "chunks", total=5): ...

    Args:
        items: What is read.
        what: They are, for people.
        total: How many there may be; None: unknown.
        out: Where it is said; stderr if None.
        clock: Monotonic seconds.
    """
    out = out or sys.stderr
    if out.isatty():
        yield from _with_bar(items, what, total, out)
        return
    of = "" if total is None else f" of {total:,}"
    said_s = clock()
    for count, item in enumerate(items, start=1):
        yield item
        if clock() - said_s >= LINE_S:
            said_s = clock()
            out.write(f"read {count:,}{of} {what}\n")
            out.flush()


def _with_bar(items: Iterable[_Item], what: str, total: int | None, out: TextIO) -> Iterator[_Item]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=out), transient=True) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)
