"""What the unit executes: notes how the last run ended, picks the slot, enrols, runs the agent."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from edge_agent.slots import transitions
from edge_agent.slots.files import read_plain
from edge_agent.slots.layout import Layout
from edge_agent.slots.rules import EXIT_EXPIRED, EXIT_HUNG, EXIT_SWITCHED, Rules, said
from edge_agent.slots.service_manager import Signals, Upstream
from edge_agent.slots.state import Moment, Name, Refused, State
from edge_agent.slots.store import Store
from edge_agent.slots.supervisor import TICK_S, Log, Outcome, Supervisor
from edge_agent.slots.transitions import End

MAX_SEED_BYTES: Final = 4096
ENROL_WAIT_S: Final = 600
BACKOFF_BASE_S, BACKOFF_CAP_S = 1.0, 60.0


def begin(layout: Layout, store: Store) -> State:
    """Notes that the agent is about to be started; may roll back.

    Raises:
        OSError: It can't be written.
    """
    rules = Rules.read(layout.config)

    def transition(state: State, now: Moment) -> State:
        broken = "" if state.current is None else layout.broken(state.current)
        return transitions.begin_run(state, now, max_deaths=rules.deaths, broken=broken)

    return store.change(transition)


def end(layout: Layout, store: Store, how: End, *, expired: bool) -> State:
    """Notes how the agent ended; may roll back.

    Raises:
        OSError: It can't be written.
    """
    rules = Rules.read(layout.config)

    def transition(state: State, now: Moment) -> State:
        after = transitions.end_run(state, how, now, max_deaths=rules.deaths)
        if expired and after.trial is not None:
            reason = f"it did not act {rules.acts} episodes in {rules.deadline_s:.0f} s of running"
            after = transitions.expire(after, after.trial.number, reason, now)
        return after

    return store.change(transition)


class Launcher:
    """Runs the agent of whatever slot is current.

    with Signals() as signals:
        code = Launcher(layout, store, signals, log=print).run_once()
    """

    def __init__(
        self,
        layout: Layout,
        store: Store,
        signals: Signals,
        *,
        log: Log,
        upstream: Upstream,
        watchdog_s: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            layout: Where.
            store: The state.
            signals: Stop it.
            log: Hears what happens.
            upstream: The service manager, if there is one.
            watchdog_s: After how long a silence an agent is killed.
        """
        self._layout, self._store, self._signals = layout, store, signals
        self._log, self._upstream = log, upstream
        self._watchdog_s = watchdog_s
        self._apply: subprocess.Popen[bytes] | None = None

    def run_once(self, *, tend: Callable[[], None] = lambda: None) -> Outcome:
        """Runs the agent to its end; changes nothing of the state.

        Raises:
            Refused: Nothing is installed.
            OSError: It can't be started.
        """
        name = self._store.read().current
        if name is None:
            raise Refused("nothing is installed: `shoal-slots setup BUNDLE` first")
        if self._broken_off_enrolling(name):
            return Outcome(0, stopped=True)
        supervisor = Supervisor(
            self._layout,
            self._store,
            self._signals,
            log=self._log,
            upstream=self._upstream,
            watchdog_s=self._watchdog_s,
            tend=tend,
        )
        config = ("--config", str(self._layout.config))
        return supervisor.run(name, ["agent", "run", *config, *self._layout.told])

    def run_forever(self) -> int:
        """Runs the agent again and again, installs updates, and changes slots: without systemd.

        Returns:
            The exit code, after SIGTERM.

        Raises:
            Refused: Nothing is installed.
        """
        rng, attempt = random.Random(), 0
        while not self._signals.stop:
            self._try(lambda: begin(self._layout, self._store))
            started_s = time.monotonic()
            outcome = self._run_noting()
            how = End(died=not outcome.stopped, reason=said(outcome.code))
            expired = outcome.code == EXIT_EXPIRED
            if expired or outcome.code == EXIT_SWITCHED:
                how = End(died=False, reason=said(outcome.code))
            self._try(lambda: end(self._layout, self._store, how, expired=expired))  # noqa: B023 called now
            if outcome.stopped:
                break
            attempt = 0 if time.monotonic() - started_s > BACKOFF_CAP_S else attempt + 1
            if how.died:
                ceiling = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(attempt - 1, 16))
                self._rest(rng.uniform(0.0, ceiling))
        if self._apply is not None:
            self._apply.wait()
        return 0

    def _run_noting(self) -> Outcome:
        try:
            return self.run_once(tend=self._tend)
        except OSError as error:
            self._log(f"the agent can't be started: {error}")
            return Outcome(EXIT_HUNG)

    def _try(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as error:  # a full disk ends no agent
            self._log(f"the state of the slots can't be written: {error}")

    def _rest(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while not self._signals.stop and (left_s := deadline_s - time.monotonic()) > 0:
            self._signals.wait(timeout_s=left_s)
            self._tend()

    def _tend(self) -> None:
        """Has what waits applied, in a process of its own: it takes minutes."""
        if self._apply is not None and self._apply.poll() is None:
            return
        if self._layout.acted.exists() or self._layout.request.exists():
            self._apply = subprocess.Popen([*own_command(self._layout), "apply"])

    def _broken_off_enrolling(self, name: Name) -> bool:
        """Enrols if this device has to and isn't; True if it was asked to stop meanwhile."""
        while not (self._layout.identity / "cert.pem").exists() and self._layout.seed.exists():
            self._upstream.tell("READY=1", "STATUS=held: not enrolled yet")
            self._log("held: not enrolled yet")
            command = [str(self._layout.command(name)), *enrol_arguments(self._layout)]
            with subprocess.Popen(command) as child:
                while child.poll() is None:
                    self._upstream.tell("WATCHDOG=1")
                    self._signals.wait(timeout_s=TICK_S)
                    if self._signals.stop:
                        child.terminate()
                        return True
            if child.returncode != 0:
                self._log(f"enrolment ended with code {child.returncode}; it is tried again")
                self._upstream.tell("WATCHDOG=1")
                self._rest(BACKOFF_CAP_S / 4)
            if self._signals.stop:
                return True
        return False


def enrol_arguments(layout: Layout) -> Sequence[str]:
    """How to call `shoal` so that this device becomes a member of its fleet.

    Raises:
        Refused: The seed isn't one.
    """
    try:
        seed = json.loads(read_plain(layout.seed, MAX_SEED_BYTES))
        server = f"{seed['host']}:{int(seed['port'])}"
        fingerprint, name = str(seed["ca_fingerprint"]), str(seed.get("device", ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{layout.seed}: {type(error).__name__}: {error}; flash again") from error
    return [
        *("agent", "enroll", "--server", server, "--ca-fingerprint", fingerprint),
        *("--identity", str(layout.identity), "--wait-s", str(ENROL_WAIT_S)),
        *(("--token-file", str(layout.token)) if layout.token.exists() else ()),
        *(("--name", name) if name else ()),
    ]


def own_command(layout: Layout) -> list[str]:
    """How to call this very launcher in another process."""
    return [
        *(sys.executable, "-IB", str(Path(__file__).parent)),
        *("--prefix", str(layout.prefix), "--state-dir", str(layout.state_dir)),
        *("--config", str(layout.config)),
    ]
