"""Asks a person for a secret without stopping the event loop, one question at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

MAX_SECRET_BYTES: Final = 1024


class SecretPrompt:
    """Asks at the terminal of this process; what is typed is not shown.

    ask = SecretPrompt(progress.pausing)
    password = await ask("Password of pi@10.0.0.4")
    """

    def __init__(self, pausing: Callable[[], AbstractContextManager[object]]) -> None:
        """Asks nothing yet; `pausing` keeps others from drawing meanwhile."""
        self._pausing = pausing
        self._turn = asyncio.Lock()

    async def __call__(self, question: str) -> str:
        """Returns what was typed; nothing if the terminal was closed."""
        async with self._turn:
            with self._pausing(), _echo_off(sys.stdin.fileno()):
                sys.stderr.write(f"{question}: ")
                sys.stderr.flush()
                try:
                    return await _read_line(sys.stdin.fileno())
                finally:
                    sys.stderr.write("\n")


async def _read_line(descriptor: int) -> str:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def readable() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, MAX_SECRET_BYTES))

    loop.add_reader(descriptor, readable)
    try:
        typed = await line
    finally:
        loop.remove_reader(descriptor)
    return typed.decode("utf-8", "replace").rstrip("\r\n")


@contextlib.contextmanager
def _echo_off(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
