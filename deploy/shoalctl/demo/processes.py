"""The demo's processes: started apart, started again when they die, and never left behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import ConfigError, ServiceEnded
from shoal.services import backoff
from shoalctl.tether import tethered

STOP_TIMEOUT_S = 8.0
# Many processes share few cores: a thread pool in each, for small matrices, only gets in the way.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
MAX_EARLY_DEATHS = 3  # of one process in a row, each within `EARLY_S` of its start
EARLY_S = 2.0
MAX_CRASHES = 3  # of one process in a row, by a bug, each within `CRASH_S` of its start
CRASH_S = 120.0
LAST_LINES = 8
_BUG = 5  # the exit code


class Crashed(ServiceEnded):
    """A process ended by a bug, again and again."""

    exit_code = _BUG


@dataclass(frozen=True, slots=True)
class Program:
    """How one process is run.

    Attributes:
        name: Unique in the demo; also the name of its log.
        arguments: Of the `shoal` command.
        again: Arguments when it is started again after it died; the same if None.
        program: Run this in place of the `shoal` command.
    """

    name: str
    arguments: tuple[str, ...]
    again: tuple[str, ...] | None = None
    program: str | None = None


class Processes:
    """Runs programs as processes of their own; closing it ends every one of them.

    async with Processes(logs) as processes:
        await processes.start(Program("broker", ("broker", "run")))
        await processes.supervise()
    """

    def __init__(self, logs: Path, *, on_restart: Callable[[str, int], None]) -> None:
        """Keeps each process's output in `logs`; tells `on_restart` the name and exit status."""
        self._logs = logs
        self._on_restart = on_restart
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends every process, whatever happened."""
        await self.stop(*tuple(self._watches))
        if self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # it was raised by `supervise`, or nobody waits for it

    def pids(self) -> Mapping[str, int]:
        """The process id of each program that runs."""
        return {name: process.pid for name, process in self._running.items()}

    def log_of(self, name: str) -> Path:
        """Where the output of a program goes."""
        return self._logs / f"{name}.log"

    async def start(self, program: Program) -> None:
        """Starts a program and starts it again whenever it dies."""
        process = await self._spawn(program, program.arguments)
        self._watches[program.name] = asyncio.ensure_future(self._keep(program, process))

    async def supervise(self) -> None:
        """Waits until a program cannot be kept running.

        Raises:
            ServiceEnded: It died at once, several times in a row; with the last line of its log.
        """
        await asyncio.shield(self._failed)

    async def stop(self, *names: str) -> None:
        """Asks programs to end, then ends those that do not."""
        for name in names:
            if (watch := self._watches.pop(name, None)) is not None:
                watch.cancel()
                await asyncio.wait([watch])
        leaving = [self._running.pop(name) for name in names if name in self._running]
        for process in leaving:
            _signal_group(process, signal.SIGTERM)
        await asyncio.gather(*(_reap(process) for process in leaving))

    async def _keep(self, program: Program, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        early = crashes = 0
        while True:
            started = loop.time()
            status = await process.wait()
            _signal_group(process, signal.SIGKILL)  # whatever it had started itself
            ran_s = loop.time() - started
            crashes = crashes + 1 if status == _BUG and ran_s < CRASH_S else 0
            early = early + 1 if ran_s < EARLY_S else 0
            if crashes >= MAX_CRASHES:
                self._fail_with(self._crashed(program.name, crashes))
                return
            if early >= MAX_EARLY_DEATHS or status == ConfigError.exit_code:
                self._fail(program.name, status)
                return
            self._on_restart(program.name, status)
            await asyncio.sleep(backoff(early, base_s=0.1, cap_s=2.0, rng=random.Random()))
            process = await self._spawn(program, program.again or program.arguments)

    def _fail(self, name: str, status: int) -> None:
        lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        self._fail_with(
            ServiceEnded(f"{name} ended with {status}: {last} (all of it: {self.log_of(name)})")
        )

    def _crashed(self, name: str, times: int) -> Crashed:
        lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
        last = " | ".join(lines[-LAST_LINES:])
        return Crashed(
            f"{name} crashed {times} times in a row: {last} (all of it: {self.log_of(name)})"
        )

    def _fail_with(self, error: ServiceEnded) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _spawn(
        self, program: Program, arguments: tuple[str, ...]
    ) -> asyncio.subprocess.Process:
        command = [program.program] if program.program else [sys.executable, "-m", "shoalctl.cli"]
        with self.log_of(program.name).open("ab") as log:
            spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *tethered([*command, *arguments]),
                    env=_ONE_THREAD | os.environ,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches the demo alone, which stops the others
                )
            )
            try:
                process = await asyncio.shield(spawning)
            except asyncio.CancelledError:  # it lives, and nobody else knows of it
                process = await spawning
                _signal_group(process, signal.SIGKILL)
                await process.wait()
                raise
        self._running[program.name] = process
        return process


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _reap(process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    _signal_group(process, signal.SIGKILL)
    await process.wait()
