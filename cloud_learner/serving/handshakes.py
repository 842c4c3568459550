"""Whom the gRPC port turned away before any call: read from what gRPC writes to stderr.

gRPC ends a TLS handshake inside its C core and tells Python nothing; it only logs why, at its level
INFO, to file descriptor 2. So that descriptor leads here: gRPC's own lines are read and kept back,
everything else goes on to where it went before (decision 0026).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from cloud_learner.fleet.event_log import LEARNER
from cloud_learner.uplink.throttle import Throttle

if TYPE_CHECKING:  # gRPC reads what it shall tell when it is imported
    from cloud_learner.fleet.fleet import Fleet

VERBOSITY: Final = "GRPC_VERBOSITY"
JOIN_TIMEOUT_S: Final = 1.0
MAX_LINE_BYTES: Final = 64 * 1024
_CORE_LINE: Final = re.compile(rb"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.cc:\d+\] ")
_FAILED: Final = b"Handshake failed with error"
_REASONS: Final = (
    (b"PEER_DID_NOT_RETURN_A_CERTIFICATE", "no_certificate"),
    (b"certificate has expired", "certificate_dates"),
    (b"certificate is not yet valid", "certificate_dates"),
    (b"CERTIFICATE_VERIFY_FAILED", "foreign_certificate"),
)
"""What the core says, and what it means; the first that fits, else `tls`."""


_SAID: Final = {
    "no_certificate": "a client without a certificate",
    "foreign_certificate": "a client whose certificate is of another CA",
    "certificate_dates": "a client whose certificate has expired, or is not valid yet",
    "tls": "a client that does not speak TLS as it should",
}


def read_line(line: bytes) -> str | None:
    """What a line on stderr is.

    Returns:
        Why a handshake failed; empty for another line of gRPC's own; None for one that is not.
    """
    if not _CORE_LINE.match(line):
        return None
    if _FAILED not in line:
        return ""
    return next((reason for part, reason in _REASONS if part in line), "tls")


class Handshakes:
    """Counts the handshakes that this process's gRPC servers refused.

        with Handshakes.listening() as handshakes:  # before gRPC is imported
            await handshakes.serve(lambda reason, count: ...)

    Python's own stderr goes where it went, at once; what libraries in C write goes through a
    thread. Should such a library end the process, its last words may be lost; the traceback of
    every thread is written regardless.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    @classmethod
    @contextlib.contextmanager
    def listening(cls) -> Iterator[Handshakes]:
        """Reads stderr within the block."""
        if os.environ.get(VERBOSITY, "NONE") == "NONE":  # whoever asks for more wants to see it
            os.environ[VERBOSITY] = "INFO"
        self = cls()
        sys.stderr.flush()
        before, python = os.dup(2), sys.stderr
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        thread = threading.Thread(
            target=self._read, args=(reading, before), name="stderr", daemon=True
        )
        thread.start()
        enabled = faulthandler.is_enabled()
        with open(before, "w", buffering=1, encoding="utf-8", closefd=False) as direct:
            sys.stderr = direct
            faulthandler.enable(direct)
            try:
                yield self
            finally:
                sys.stderr = python
                os.dup2(before, 2)
                faulthandler.disable()
                if enabled:
                    faulthandler.enable(2)
                thread.join(JOIN_TIMEOUT_S)
        if not thread.is_alive():
            os.close(before)

    async def serve(self, note: Callable[[str, int], object]) -> None:
        """Tells of refused handshakes, until cancelled.

        Args:
            note: Called with a reason, and how many were refused for it since it was called last.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                for reason, count in self._take().items():
                    note(reason, count)
                await self._wake.wait()
                self._wake.clear()
        finally:
            self._loop = None

    def _take(self) -> Counter[str]:
        with self._lock:
            taken, self._refused = self._refused, Counter()
        return taken

    def _read(self, reading: int, before: int) -> None:
        """In a thread: until nobody can write any more."""
        with open(reading, "rb") as source:
            while line := source.readline(MAX_LINE_BYTES):
                reason = read_line(line)
                if reason is None:
                    with contextlib.suppress(OSError):  # nobody reads it
                        os.write(before, line)
                elif reason:
                    self._count(reason)

    def _count(self, reason: str) -> None:
        with self._lock:
            self._refused[reason] += 1
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._wake.set)


async def tell_refused(
    handshakes: Handshakes, fleet: Fleet, counters: Counter[str], throttle: Throttle
) -> None:
    """Counts refused handshakes, as `handshakes_refused_REASON`, and tells the fleet of them.

    Args:
        handshakes: That are refused.
        fleet: Where they become events.
        counters: Where each one is counted.
        throttle: How often each reason becomes an event.
    """

    def note(reason: str, count: int) -> None:
        counters[f"handshakes_refused_{reason}"] += count
        told = throttle.count_to_tell(reason, count)
        if told:
            message = f"the gRPC port turned away {_SAID[reason]}; gRPC does not tell from where"
            fleet.record(LEARNER, "handshake_refused", message, reason=reason, count=str(told))

    await handshakes.serve(note)
