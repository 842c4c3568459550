"""Kills a process before a chosen step that reaches the disk, as a power cut or `kill -9` would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

STEPS = (
    *("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "symlink", "sync", "chown"),
    "open",
)


@dataclass
class Killer:
    """Counts the steps that reach the disk, and kills this process before one of them."""

    at: int | None = None
    power_cut: bool = False
    steps: list[str] = field(default_factory=list)
    unsynced: Path | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = {name: getattr(os, name) for name in STEPS}
        for name, call in before.items():
            setattr(os, name, self._hooked(name, call))
        try:
            yield
        finally:
            for name, call in before.items():
                setattr(os, name, call)

    def _hooked(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def hooked(*args: object, **more: object) -> object:
            if more.get("dir_fd") is not None or changes_something(name, *args):
                self._step(name, args)
            return call(*args, **more)

        return hooked

    def _step(self, name: str, args: tuple[object, ...]) -> None:
        if self.at == len(self.steps):
            if self.power_cut and name == "fsync":
                with contextlib.suppress(OSError):
                    os.ftruncate(int(str(args[0])), 0)
            if self.power_cut and self.unsynced is not None:
                for path in self.unsynced.rglob("*"):
                    if path.is_file():
                        os.truncate(path, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        paths = [Path(each).name for each in args if isinstance(each, str | Path)]
        self.steps.append(" ".join([name, *paths[-1:]]))


def changes_something(name: str, *args: object) -> bool:
    """Whether a call is a step: killed before one that does nothing, nothing new is seen."""
    first = args[0] if args else None
    there = isinstance(first, str | Path) and os.path.lexists(first)
    if name == "open":
        flags = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
        return bool(flags & os.O_CREAT) and not there
    return there if name == "unlink" else name != "mkdir" or not there
