"""`shoal demo`: broker, learner and devices as processes of this machine, until solved."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import typer

from cloud_learner.training.published_score import published_score
from shoal.errors import ConfigError, DeadlineExceeded, EnvironmentFailed, ServiceEnded
from shoal.spaces import EnvSpec
from shoal.v1 import fleet_pb2
from shoalctl.demo.observer import Observer
from shoalctl.demo.options import DemoOptions
from shoalctl.demo.picture import Picture
from shoalctl.demo.processes import Processes
from shoalctl.demo.result import (
    End,
    Meter,
    Outcome,
    Solved,
    is_solved,
    number,
    result_envelope,
)
from shoalctl.demo.summary import advice, summary
from shoalctl.demo.view import View, make_view
from shoalctl.demo.workspace import Workspace, make_workspace

LAST_REPORTS_S = 3.0  # how long the last reports of stopped devices may take to arrive


def run_demo(options: DemoOptions, *, started_s: float) -> None:
    """Runs a demo and prints its summary.

    Args:
        options: What the flags say.
        started_s: The monotonic clock when the command started.

    Raises:
        EnvironmentFailed: It cannot be made, or nothing says when it is solved.
        DeadlineExceeded: It was not solved in time.
        KeyboardInterrupt: It was interrupted; what it came to has been printed if devices acted.
        ShoalError: A process cannot be kept running.
    """
    spec, threshold = _goal(options)  # an environment that cannot be used leaves nothing behind
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as scratch:
        directory = options.directory or Path(scratch)
        if options.directory is not None:
            directory = _make_directory(directory)
        workspace = make_workspace(directory, options.plan, spec)
        view = make_view(sys.stderr if options.as_json else sys.stdout)
        try:
            envelope = asyncio.run(_Demo(options, workspace, threshold, started_s, view).run())
        except ServiceEnded as error:
            raise type(error)(_with_logs_kept(str(error), workspace.logs, options)) from error
        except (asyncio.CancelledError, KeyboardInterrupt):  # all processes have been stopped
            typer.echo("shoal: interrupted; every process was stopped", err=True)
            raise KeyboardInterrupt from None
    if options.as_json:
        typer.echo(json.dumps(envelope))
    else:
        typer.echo(summary(envelope))
    if envelope["ended"] == End.INTERRUPTED:
        raise KeyboardInterrupt
    if envelope["ended"] == End.TIMEOUT and not envelope["solved"]:
        raise DeadlineExceeded(
            f"{options.plan.env_id} was not solved in {options.timeout_s:g} s; {advice(envelope)}"
        )


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        workspace: Workspace,
        threshold: float | None,
        started_s: float,
        view: View,
    ) -> None:
        self._options = options
        self._workspace = workspace
        self._threshold = threshold
        self._started_s = started_s
        self._view = view
        self._published = published_score(options.plan.env_id, options.plan.algorithm)
        self._picture = Picture(
            env_id=options.plan.env_id,
            threshold=math.inf if threshold is None else threshold,
            published="" if self._published is None else self._published.text,
            published_mean=math.nan if self._published is None else self._published.mean,
        )
        self._solved: Solved | None = None
        self._restarts: Counter[str] = Counter()
        self._down, self._down_fp32 = Meter(), Meter()
        self._gradients: defaultdict[str, Meter] = defaultdict(Meter)
        self._lag_max = 0.0
        self._acting = False
        self._interrupted = asyncio.Event()

    async def run(self) -> dict[str, object]:
        if (main := asyncio.current_task()) is not None:
            for each in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(each, self._interrupt, main)
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(
                Processes(self._workspace.logs, on_restart=self._note_restart)
            )
            await processes.start(self._workspace.learner)  # the slowest to start goes first
            await processes.start(self._workspace.broker)
            typer.echo(
                "  from another terminal: shoal devices ls --server "
                f"{self._workspace.server} --identity {self._workspace.operator}",
                err=True,
            )
            stack.enter_context(self._view)
            observer = await stack.enter_async_context(
                Observer(self._workspace.server, self._workspace.operator)
            )
            await self._broker_is_up(processes)
            for agent in self._workspace.agents:
                await processes.start(agent)
            ended = await self._until_ended(processes, observer)
            wall_s = self._elapsed_s()
            training = self._picture.training or fleet_pb2.Training()
            await processes.stop(*(agent.name for agent in self._workspace.agents))
            devices, audit = await self._last_reports(observer)
            last = await observer.training()
            final = training if last is None else self._metered(last)
            digests = await observer.policy_digests()
        outcome = Outcome(
            env_id=self._options.plan.env_id,
            algorithm=self._options.plan.algorithm,
            seed=self._options.plan.seed,
            solved=self._solved,
            ended=ended,
            wall_s=wall_s,
            threshold=self._threshold,
            published=self._published,
            restarts=dict(self._restarts),
        )
        envelope = result_envelope(outcome, final, devices, audit)
        envelope["env_steps"] = training.env_steps  # at the moment it ended
        envelope["return_mean"] = number(training.return_mean)
        envelope["started_monotonic_s"] = self._started_s
        envelope["policy_digests"] = digests
        return envelope

    def _interrupt(self, main: asyncio.Task[Any]) -> None:
        """The first time, while devices act, it ends with a summary; else at once."""
        if self._acting and not self._interrupted.is_set():
            self._interrupted.set()
        else:
            main.cancel()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _metered(self, training: fleet_pb2.Training) -> fleet_pb2.Training:
        """With what learners before this one sent, and the highest lag of the whole run."""
        training.bytes_down = self._down.reading(training.bytes_down)
        training.bytes_down_fp32 = self._down_fp32.reading(training.bytes_down_fp32)
        self._lag_max = training.lag_max = max(self._lag_max, training.lag_max)
        if "updates_pushed" in training.counters:  # no journal counts these from run to run
            training.bytes_up = self._gradients["bytes_up"].reading(training.bytes_up)
            for name in [each for each in training.counters if each.startswith("updates_")]:
                counted = self._gradients[name].reading(training.counters[name])
                training.counters[name] = counted
        return training

    def _note_restart(self, name: str, status: int) -> None:
        self._restarts[name] += 1
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        self._picture.notes.append(f"{name} ended with {how}; started again")

    async def _broker_is_up(self, processes: Processes) -> None:
        supervising = asyncio.ensure_future(processes.supervise())
        try:
            while not supervising.done():
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", self._workspace.broker_port
                    )
                    writer.close()
                    return
                await asyncio.sleep(0.02)
            await supervising
        finally:
            supervising.cancel()

    async def _until_ended(self, processes: Processes, observer: Observer) -> End:
        supervising = asyncio.ensure_future(processes.supervise())
        watching = asyncio.ensure_future(self._watch(processes, observer))
        redrawing = asyncio.ensure_future(self._redraw(processes, observer))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        left_s = self._options.timeout_s - self._elapsed_s()
        tasks = (supervising, watching, redrawing, interrupted)
        self._acting = True
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if watching in done:
                return watching.result()
            return End.INTERRUPTED if interrupted in done else End.TIMEOUT
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, processes: Processes, observer: Observer) -> End:
        async for training in observer.watch_training():
            now_s = self._elapsed_s()
            self._picture.take(self._metered(training), now_s)
            if training.learner_state == "cannot_train":
                self._picture.notes.append(f"the learner cannot train: {training.learner_problem}")
                self._show(processes)
                raise ConfigError(f"the learner cannot train: {training.learner_problem}")
            if self._solved is None and is_solved(training, self._threshold):
                self._solved = Solved(training.env_steps, now_s)
            ended = self._ended(training)
            if ended is not None:
                self._show(processes)
                return ended
        raise AssertionError  # it watches for ever

    def _ended(self, training: fleet_pb2.Training) -> End | None:
        if self._solved is not None and not self._options.go_on:
            return End.SOLVED
        last = self._options.stop_after_steps
        return End.STEPS if last is not None and training.env_steps >= last else None

    async def _redraw(self, processes: Processes, observer: Observer) -> None:
        while True:
            if self._picture.training is not None:
                self._picture.devices = await observer.devices() or self._picture.devices
            self._show(processes)
            await asyncio.sleep(0.5)

    def _show(self, processes: Processes) -> None:
        self._picture.elapsed_s = self._elapsed_s()
        self._picture.pids = dict(processes.pids())
        self._view.show(self._picture)

    async def _last_reports(
        self, observer: Observer
    ) -> tuple[Sequence[fleet_pb2.Device], fleet_pb2.Audit]:
        """Waits until every stopped device has said its last, for a bounded time."""
        deadline_s = time.monotonic() + LAST_REPORTS_S
        while True:
            devices = await observer.devices() or ()
            gone = sum(d.health == fleet_pb2.HEALTH_OFFLINE_EXPECTED for d in devices)
            if gone >= self._options.plan.devices or time.monotonic() > deadline_s:
                audit = await observer.audit() or fleet_pb2.Audit(balanced=True)
                return devices, audit
            await asyncio.sleep(0.05)


def _goal(options: DemoOptions) -> tuple[EnvSpec, float | None]:
    """What the devices act in, and the mean return that counts as solved."""
    from edge_agent.config import EnvConfig
    from edge_agent.environments.env import make_env

    kwargs = dict(options.plan.env_kwargs)
    environments = make_env(EnvConfig(options.plan.env_id, kwargs=kwargs))
    try:
        spec = environments.spec
    finally:
        environments.close()
    threshold = spec.reward_threshold if options.until_return is None else options.until_return
    if threshold is None and options.stop_after_steps is None:
        raise EnvironmentFailed(
            f"{options.plan.env_id} states no reward threshold; say when it is solved "
            "with --until-return, or when it ends with --stop-after-steps"
        )
    return spec, threshold


def _make_directory(directory: Path) -> Path:
    """Makes it; processes of the demo work elsewhere, so its path is absolute."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}; give another --dir") from error
    if any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; give a new --dir")
    return directory.resolve()


def _with_logs_kept(said: str, logs: Path, options: DemoOptions) -> str:
    """What was said of logs, which outlive a demo whose directory is removed."""
    if options.directory is not None:
        return said
    kept = Path(tempfile.mkdtemp(prefix="shoal-demo-logs-"))
    shutil.copytree(logs, kept, dirs_exist_ok=True)
    return said.replace(str(logs), str(kept))
