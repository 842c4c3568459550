"""Events: what happened on the device that somebody should hear of."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from shoal.logs import Logger, get_logger
from shoal.v1 import device_pb2 as pb

MAX_WAITING: Final = 256
"""Events that wait for a connection; beyond, the oldest is forgotten and counted."""


class Events:
    """A bounded queue of events, filled by any thread and drained by the uplink.

    events = Events("pi-1", run_id, clock=time.time)
    events.emit(pb.SEVERITY_WARNING, "policy_rejected", "bad signature", reason="signature")
    for event in events.take():
        publish(event)
    """

    def __init__(self, device_id: str, run_id: bytes, *, clock: Callable[[], float]) -> None:
        """Makes an empty queue.

        Args:
            device_id: the device.
            run_id: the present run, 16 bytes.
            clock: wall clock, in seconds since the epoch.
        """
        self._device_id = device_id
        self._run_id = run_id
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[pb.Event] = deque(maxlen=MAX_WAITING)
        self._emitted = 0
        self._forgotten = 0
        self._listeners: tuple[Callable[[], object], ...] = ()
        self._log: Logger = get_logger("agent").bind(device_id=device_id, run_id=run_id)

    @property
    def forgotten(self) -> int:
        """How many were given up because too many waited."""
        return self._forgotten

    def emit(
        self, severity: pb.Severity, name: str, message: str, **fields: str | float | bool
    ) -> None:
        """Logs an event and queues it.

        Args:
            severity: how bad it is.
            name: snake_case.
            message: one line for people.
            fields: what a program may want to know.
        """
        with self._lock:
            self._forgotten += len(self._waiting) == MAX_WAITING
            self._waiting.append(
                pb.Event(
                    device_id=self._device_id,
                    run_id=self._run_id,
                    event_seq=self._emitted,
                    sent_unix_ms=int(self._clock() * 1000),
                    severity=severity,
                    name=name,
                    fields={key: str(value) for key, value in fields.items()},
                    message=message,
                )
            )
            self._emitted += 1
        log = {pb.SEVERITY_INFO: self._log.info, pb.SEVERITY_ERROR: self._log.error}
        log.get(severity, self._log.warning)(name, message=message, **fields)
        for listener in self._listeners:
            listener()

    def take(self) -> list[pb.Event]:
        """Empties the queue; oldest first."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Calls `listener`, from the emitting thread, after each event, within the block."""
        self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            self._listeners = tuple(other for other in self._listeners if other is not listener)
