"""The persisted state of the slots, and the link that follows it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edge_agent.slots import codec, transitions
from edge_agent.slots.bundle import BundleDamaged, read_manifest
from edge_agent.slots.files import link_durably, write_durably
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Moment, Name, Refused, State

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

Clock = Callable[[], Moment]


def moment() -> Moment:
    """Now."""
    return Moment(int(time.time()), boot_id())


def boot_id() -> str:
    """The kernel's name for this boot."""
    return _BOOT_ID.read_text("ascii").strip()


class Store:
    """Reads and changes the state.

    store = Store(Layout.of(Path("/opt/shoal")))
    store.change(lambda state, now: transitions.switch(state, "by hand", now))
    """

    def __init__(self, layout: Layout, *, clock: Clock = moment) -> None:
        """Opens nothing yet.

        Args:
            layout: Where.
            clock: Says when.
        """
        self._layout = layout
        self._clock = clock

    @property
    def now(self) -> Moment:
        """The time, as this store's changes note it."""
        return self._clock()

    def read(self) -> State:
        """The state; what the slots themselves speak for, where its file is damaged or lost."""
        path = self._layout.state_file
        try:
            return codec.decode(path.read_bytes())
        except FileNotFoundError:
            return self._recover("slots.json is missing")
        except codec.Malformed as error:
            return self._recover(f"slots.json is damaged: {error}")

    def change(self, transition: Callable[[State, Moment], State]) -> State:
        """Makes the next state from this one, on the disk; the link follows.

        Raises:
            Refused: The transition isn't possible; nothing changed.
            OSError: It can't be written; nothing changed.
        """
        self._layout.prefix.mkdir(parents=True, exist_ok=True)
        with locked(self._layout.state_lock):
            before = self.read()
            after = transition(before, self._clock())
            if after != before or not self._layout.state_file.exists():
                write_durably(self._layout.state_file, codec.encode(after))
            if after.current is not None:
                link_durably(self._layout.current, f"slots/{after.current}")
        return after

    def _recover(self, reason: str) -> State:
        found = {}
        for name in Name:
            if not self._layout.broken(name):
                with contextlib.suppress(BundleDamaged):
                    found[name] = read_manifest(self._layout.slot(name)).release
        current = None
        with contextlib.suppress(OSError, ValueError):
            current = Name(os.path.basename(os.readlink(self._layout.current)))  # noqa: PTH115, PTH119
        return transitions.recover(found, current, reason, self._clock())


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds a lock that ends with its process.

    Raises:
        Refused: Another process holds it, and it wasn't to be waited for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Refused("another installation is in progress: wait until it ended") from error
        yield
    finally:
        os.close(descriptor)
