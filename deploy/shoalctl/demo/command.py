"""`shoal demo`: broker, learner and devices as processes of this machine, until solved."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from shoal.errors import ConfigError, DeadlineExceeded, EnvironmentFailed
from shoal.v1 import fleet_pb2
from shoalctl.demo.observer import Observer
from shoalctl.demo.processes import Processes
from shoalctl.demo.result import Meter, Outcome, is_solved, number, result_envelope
from shoalctl.demo.view import Picture, View, bytes_text, make_view
from shoalctl.demo.workspace import DemoPlan, Workspace, make_workspace

LAST_REPORTS_S = 3.0  # how long the last reports of stopped devices may take to arrive
CURVE_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the flags of `shoal demo` say.

    Attributes:
        until_return: Mean return that counts as solved; None for the environment's own threshold.
        directory: Where keys, logs and state are kept; None for a directory that is removed.
    """

    plan: DemoPlan
    until_return: float | None
    timeout_s: float
    as_json: bool
    directory: Path | None


def run_demo(options: DemoOptions, *, started_s: float) -> None:
    """Runs a demo and prints its summary.

    Args:
        options: What the flags say.
        started_s: The monotonic clock when the command started.

    Raises:
        DeadlineExceeded: It was not solved in time.
        ShoalError: A process cannot be kept running.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as scratch:
        directory = options.directory or Path(scratch)
        if options.directory is not None:
            _make_directory(directory)
        workspace = make_workspace(directory, options.plan)
        view = make_view(sys.stderr if options.as_json else sys.stdout)
        try:
            envelope = asyncio.run(_Demo(options, workspace, started_s, view).run())
        except (asyncio.CancelledError, KeyboardInterrupt):  # all processes have been stopped
            typer.echo("shoal: interrupted; every process was stopped", err=True)
            raise KeyboardInterrupt from None
    if options.as_json:
        typer.echo(json.dumps(envelope))
    else:
        typer.echo(_summary(envelope))
    if not envelope["solved"]:
        raise DeadlineExceeded(
            f"{options.plan.env_id} was not solved in {options.timeout_s:g} s; "
            "give more time with --timeout-s, or a lower goal with --until-return"
        )


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        workspace: Workspace,
        started_s: float,
        view: View,
    ) -> None:
        self._options = options
        self._workspace = workspace
        self._threshold = math.inf  # until the environment was asked
        self._started_s = started_s
        self._view = view
        self._picture = Picture(env_id=options.plan.env_id, threshold=self._threshold)
        self._restarts: Counter[str] = Counter()
        self._next_point_s = 0.0
        self._down, self._down_fp32 = Meter(), Meter()
        self._lag_max = 0.0

    async def run(self) -> dict[str, object]:
        _interrupt_on_sigterm()
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(
                Processes(self._workspace.logs, on_restart=self._note_restart)
            )
            await processes.start(self._workspace.learner)  # the slowest to start goes first
            await processes.start(self._workspace.broker)
            self._threshold = await asyncio.to_thread(_threshold, self._options)
            self._picture.threshold = self._threshold
            stack.enter_context(self._view)
            observer = await stack.enter_async_context(
                Observer(self._workspace.server, self._workspace.operator)
            )
            await self._broker_is_up(processes)
            for agent in self._workspace.agents:
                await processes.start(agent)
            solved = await self._until_solved(processes, observer)
            wall_s = self._elapsed_s()
            training = self._picture.training or fleet_pb2.Training()
            await processes.stop(*(agent.name for agent in self._workspace.agents))
            devices, audit = await self._last_reports(observer)
            last = await observer.training()
            final = training if last is None else self._metered(last)
            digests = await observer.policy_digests()
        outcome = Outcome(
            env_id=self._options.plan.env_id,
            seed=self._options.plan.seed,
            solved=solved,
            wall_s=wall_s,
            threshold=self._threshold,
            restarts=dict(self._restarts),
        )
        envelope = result_envelope(outcome, final, devices, audit)
        envelope["env_steps"] = training.env_steps  # at the moment it was solved
        envelope["return_mean"] = number(training.return_mean)
        envelope["started_monotonic_s"] = self._started_s
        envelope["policy_digests"] = digests
        return envelope

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _metered(self, training: fleet_pb2.Training) -> fleet_pb2.Training:
        """With what learners before this one sent, and the highest lag of the whole run."""
        training.bytes_down = self._down.reading(training.bytes_down)
        training.bytes_down_fp32 = self._down_fp32.reading(training.bytes_down_fp32)
        self._lag_max = training.lag_max = max(self._lag_max, training.lag_max)
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

    async def _until_solved(self, processes: Processes, observer: Observer) -> bool:
        supervising = asyncio.ensure_future(processes.supervise())
        watching = asyncio.ensure_future(self._watch(processes, observer))
        redrawing = asyncio.ensure_future(self._redraw(processes, observer))
        left_s = self._options.timeout_s - self._elapsed_s()
        tasks = (supervising, watching, redrawing)
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            return watching in done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, processes: Processes, observer: Observer) -> None:
        async for training in observer.watch_training():
            self._picture.training = self._metered(training)
            now_s = self._elapsed_s()
            if training.episodes and now_s >= self._next_point_s:
                self._picture.curve.append(training.return_mean)
                self._next_point_s = now_s + CURVE_EVERY_S
            if is_solved(training, self._threshold):
                self._show(processes)
                return

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
                audit = await observer.audit() or fleet_pb2.Audit()
                return devices, audit
            await asyncio.sleep(0.05)


def _threshold(options: DemoOptions) -> float:
    from edge_agent.config import EnvConfig
    from edge_agent.env import make_env

    environments = make_env(EnvConfig(options.plan.env_id))
    try:
        own = environments.spec.reward_threshold
    finally:
        environments.close()
    threshold = own if options.until_return is None else options.until_return
    if threshold is None:
        raise EnvironmentFailed(
            f"{options.plan.env_id} states no reward threshold; say when it is solved "
            "with --until-return"
        )
    return threshold


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}; give another --dir") from error
    if any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; give a new --dir")


def _interrupt_on_sigterm() -> None:
    main = asyncio.current_task()
    if main is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)


def _summary(envelope: dict[str, object]) -> str:
    audit, moved, lag = envelope["audit"], envelope["bytes"], envelope["lag"]
    quantization, devices = envelope["quantization"], envelope["devices"]
    assert isinstance(audit, dict)  # noqa: S101 the envelope is our own
    assert isinstance(moved, dict)  # noqa: S101
    assert isinstance(lag, dict)  # noqa: S101
    assert isinstance(quantization, dict)  # noqa: S101
    assert isinstance(devices, list)  # noqa: S101
    mean = envelope["return_mean"]
    verb = "solved" if envelope["solved"] else "NOT solved"
    versions = ", ".join(str(device["active_version"]) for device in devices)
    balance = "balanced" if audit["balanced"] else "NOT BALANCED"
    return (
        f"{envelope['env']} {verb} in {envelope['wall_s']:.1f} s, "
        f"{envelope['env_steps']:,} environment steps, mean return "
        f"{'unknown' if mean is None else mean} (threshold {envelope['threshold']:g})\n"
        f"  devices    {len(devices)}, on policy {versions} of {envelope['policy_versions']}\n"
        f"  precision  {quantization['precision']}, gap by quantization "
        f"{quantization['kl_quantization']:.2g} nats, by staleness "
        f"{quantization['kl_staleness']:.2g} nats\n"
        f"  lag        p50 {lag['p50']:g}, p99 {lag['p99']:g}, max {lag['max']:g} updates\n"
        f"  bytes      up {bytes_text(moved['up'])}, down {bytes_text(moved['down'])} "
        f"(as fp32: {bytes_text(moved['down_fp32_equivalent'])})\n"
        f"  chunks     produced {audit['produced']} = trained {audit['trained']} + expired "
        f"{audit['expired']} + dropped {audit['dropped']} + rejected {audit['rejected']} + "
        f"in flight {audit['in_flight']}: {balance}"
    )


def check_options(options: DemoOptions) -> DemoOptions:
    """Returns the options if they make sense.

    Raises:
        ConfigError: A number is out of its range.
    """
    for flag, value, low, high in (
        ("--devices", options.plan.devices, 1, 64),
        ("--envs", options.plan.envs, 1, 1024),
        ("--seed", options.plan.seed, 0, 1_000_000),
        ("--timeout-s", options.timeout_s, 1, 7 * 86_400),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{flag} {value:g}: use {low} to {high}")
    return options
