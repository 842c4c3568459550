"""What starts and stops the launcher, systemd or another: its signals, and what it is told."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

Handler = Callable[[int, FrameType | None], object] | int | None


class Upstream:
    """The service manager, if there is one."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def tell(self, *assignments: str) -> None:
        """Says something; nothing comes of it where nobody listens."""
        if not self._address:
            return
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.sendto("\n".join(assignments).encode(), address)


class Signals:
    """Signals as something to wait for; only in the main thread.

    with Signals() as signals:
        signals.wait(other_descriptor, timeout_s=1.0)
        signals.stop  # SIGTERM or SIGINT came
    """

    def __init__(self) -> None:
        self.stop = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Handler] = {}
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.stop = self.stop or number != signal.SIGCHLD

    def wait(self, *others: socket.socket, timeout_s: float) -> list[socket.socket]:
        """Waits for a signal, something to read, or the time; returns what can be read."""
        sources: list[socket.socket | int] = [self._read, *others]
        ready, _, _ = select.select(sources, [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass
        return [each for each in ready if isinstance(each, socket.socket)]
