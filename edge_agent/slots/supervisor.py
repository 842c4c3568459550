"""Runs the agent of a slot: hears it, watches it, and says how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots import codec
from edge_agent.slots.files import write_durably
from edge_agent.slots.layout import Layout
from edge_agent.slots.rules import (
    EXIT_ENDED,
    EXIT_EXPIRED,
    EXIT_HUNG,
    EXIT_SWITCHED,
    SIGNAL_BASE,
    Charge,
    Heard,
    Rules,
)
from edge_agent.slots.service_manager import Signals, Upstream
from edge_agent.slots.state import Name, Release, State
from edge_agent.slots.store import Store

TICK_S: Final = 1.0
"""How often files are looked at: the standard library has no inotify."""
START_S: Final = 240.0
"""How long an agent may take until it is up: it makes its environment."""
STOP_S: Final = 20.0
SAVE_CHARGE_S: Final = 10.0
WATCHDOG_S: Final = 120.0
_PR_SET_PDEATHSIG: Final = 1
_DATAGRAM_BYTES: Final = 4096

Log = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: Exit code of `run --once`.
        stopped: It was asked to.
    """

    code: int
    stopped: bool = False


class Supervisor:
    """Runs one agent to its end.

    supervisor = Supervisor(layout, store, signals, log=print)
    outcome = supervisor.run(Name.A, ["agent", "run", "--config", "agent.toml"])
    """

    def __init__(
        self,
        layout: Layout,
        store: Store,
        signals: Signals,
        *,
        log: Log,
        upstream: Upstream,
        watchdog_s: float = WATCHDOG_S,
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts nothing yet.

        Args:
            layout: Where.
            store: The state; it is only read.
            signals: Stop it, and tell of its end.
            log: Hears what happens.
            upstream: The service manager.
            watchdog_s: After how long a silence it is killed.
            tend: Called at each tick.
        """
        self._layout, self._store, self._signals = layout, store, signals
        self._log, self._upstream = log, upstream
        self._watchdog_s = watchdog_s
        self._tend = tend
        self._rules = Rules.read(layout.config)

    def run(self, name: Name, arguments: Sequence[str]) -> Outcome:
        """Starts the agent of a slot and returns when it ended.

        Raises:
            OSError: It can't be started.
        """
        release = self._store.read().slot(name).release
        with _listening() as (ear, address):
            environ = {
                **os.environ,
                "NOTIFY_SOCKET": address,
                "WATCHDOG_USEC": str(int(self._watchdog_s * 1e6)),
                "SHOAL_SLOT": name.value,
                "SHOAL_SLOTS_FILE": str(self._layout.state_file),
            }
            environ.pop("WATCHDOG_PID", None)
            command = [str(self._layout.command(name)), *arguments]
            child = subprocess.Popen(command, env=environ, preexec_fn=_die_with_parent)  # noqa: PLW1509 no threads here
            self._log(f"slot {name}: started, process {child.pid}")
            try:
                outcome = self._watch(child, ear, name, release)
            finally:
                _end(child, self._signals)
            self._log(f"slot {name}: ended, {outcome}")
            return outcome

    def _watch(
        self,
        child: subprocess.Popen[bytes],
        ear: socket.socket,
        name: Name,
        release: Release | None,
    ) -> Outcome:
        heard, charge = Heard(time.monotonic()), self._read_charge()
        before_s = saved_s = time.monotonic()
        while True:
            for source in self._signals.wait(ear, timeout_s=TICK_S):
                heard = self._hear(source, heard)
            now_s = time.monotonic()
            outcome = self._ended(child, heard, now_s)
            if outcome is None and now_s - before_s >= TICK_S:
                state = self._store.read()
                trial = _trial_of(state, name)
                charge = charge.go_on(trial, now_s - before_s, held=bool(heard.held))
                before_s = now_s
                outcome = self._overruled(state, name, release, charge)
                if charge.used_s >= self._rules.deadline_s:
                    charge = Charge(trial)
                self._tend()
                self._upstream.tell("WATCHDOG=1")
            if outcome is not None or now_s - saved_s >= SAVE_CHARGE_S:
                saved_s = now_s
                self._save_charge(charge)
            if outcome is not None:
                return outcome

    def _ended(self, child: subprocess.Popen[bytes], heard: Heard, now_s: float) -> Outcome | None:
        """Whether it ended by itself, or was asked to, or hangs."""
        if self._signals.stop:
            self._upstream.tell("STOPPING=1")
            return Outcome(0, stopped=True)
        if (code := child.poll()) is not None:
            return Outcome(code_of(code))
        if heard.hung(now_s, watchdog_s=self._watchdog_s, start_s=START_S):
            child.send_signal(signal.SIGABRT)
            return Outcome(EXIT_HUNG)
        return None

    def _overruled(
        self, state: State, name: Name, release: Release | None, charge: Charge
    ) -> Outcome | None:
        """Whether something else is current, or its trial's time is up.

        A slot may have been left, filled anew and switched to between two looks: it then has
        another release.
        """
        if state.current is not name or state.slot(name).release != release:
            return Outcome(EXIT_SWITCHED)
        if not charge.trial or charge.used_s < self._rules.deadline_s:
            return None
        if state.fallback is not None:
            return Outcome(EXIT_EXPIRED)
        self._log("the trial's time is up, and there is nothing to go back to: it goes on")
        return None

    def _hear(self, ear: socket.socket, heard: Heard) -> Heard:
        with contextlib.suppress(BlockingIOError):
            while datagram := ear.recv(_DATAGRAM_BYTES):
                before, heard = heard, heard.hear(datagram, time.monotonic())
                if heard.ready and not before.ready:
                    self._upstream.tell("READY=1")
                if heard.status != before.status:
                    self._upstream.tell(f"STATUS={heard.status}")
                if heard.held != before.held and heard.held:
                    self._log(f"held: {heard.held}")
        return heard

    def _read_charge(self) -> Charge:
        try:
            table = codec.read_table(self._layout.charged.read_bytes(), codec.MAX_BYTES)
            return Charge(codec.number(table, "trial"), float(codec.number(table, "used_s")))
        except (OSError, codec.Malformed):
            return Charge()

    def _save_charge(self, charge: Charge) -> None:
        if not charge.trial:
            return
        table = {"schema": codec.SCHEMA, "trial": charge.trial, "used_s": int(charge.used_s)}
        with contextlib.suppress(OSError):  # a full disk: the trial gets more time
            write_durably(self._layout.charged, json.dumps(table).encode())


def code_of(status: int) -> int:
    """What `run --once` ends with where the agent ended by itself: never a word of our own.

    Args:
        status: Of the agent; negative: the signal that killed it.
    """
    if status < 0:
        return SIGNAL_BASE - status
    ours = (0, EXIT_HUNG, EXIT_SWITCHED, EXIT_EXPIRED)
    return EXIT_ENDED if status in ours else status


def _trial_of(state: State, name: Name) -> int:
    return state.trial.number if state.trial is not None and state.current is name else 0


@contextlib.contextmanager
def _listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket for sd_notify in a directory of its own, and its address."""
    above = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or None
    directory = tempfile.mkdtemp(prefix="shoal-", dir=above)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ear:
            ear.settimeout(0.0)
            address = str(Path(directory) / "notify")
            ear.bind(address)
            yield ear, address
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _end(child: subprocess.Popen[bytes], signals: Signals) -> None:
    """Ends a child that hasn't ended: in order, then by force."""
    if child.poll() is not None:
        return
    child.terminate()
    deadline_s = time.monotonic() + STOP_S
    while child.poll() is None and (left_s := deadline_s - time.monotonic()) > 0:
        signals.wait(timeout_s=min(left_s, TICK_S))
    if child.poll() is None:
        child.kill()
        child.wait()


def _die_with_parent() -> None:
    """A launcher that is killed leaves no agent behind that the next one would meet."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
