"""Environment steps a second, asynchronous against synchronous, of a fleet with uneven devices.

    python tests/bench/async_sync.py --spreads lognormal-0.5,lognormal-1,straggler --seeds 3 -o json
    python tests/bench/async_sync.py --quick

The whole system runs: broker, learner and device processes. Each device steps CartPole-v1 in real
time: a step of its environments takes it a fixed time, in which it waits and computes nothing, so
what differs between devices is their speed and not their share of this machine's cores. `--spreads`
says how the times differ:

    equal             all the same
    lognormal-SIGMA   the quantiles (i + 1/2) / N of a log-normal distribution around the median
    straggler         one device is ten times slower than all others
    two-kinds         half of the devices are four times slower than the other half

Synchronous (`mode = "sync"`): all devices wait for each version, which is trained from what all of
them made under the one before. Asynchronous: nobody waits; the learner trains from whatever comes.
Network, batch, algorithm and settings are the same. README.md, beside this file, says more.
"""

import argparse
import asyncio
import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from bench.child import say  # noqa: E402
from bench.report import envelope, finite, median, table, this_machine, versions  # noqa: E402

from shoal.config import Flag  # noqa: E402
from shoal.v1 import fleet_pb2  # noqa: E402
from shoalctl.demo.observer import Observer  # noqa: E402
from shoalctl.demo.presets import preset_of  # noqa: E402
from shoalctl.demo.processes import Processes  # noqa: E402
from shoalctl.demo.workspace import DemoPlan, Workspace, make_workspace  # noqa: E402

SCHEMA = "shoal.v1.BenchAsync"
ENV = "tests.bench.real_time:RealTimeCartPole"
THRESHOLD, WINDOW = 475.0, 100
BAR_RATE, BAR_STEPS = 4.83, 1.3
MODES = ("sync", "async")
STRAGGLER, SLOWER_KIND = 10.0, 4.0
FOREVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is run.

    Attributes:
        devices: Processes.
        envs: Environments on each.
        chunk_steps: T.
        median_ms: What a step of all environments of a device in the middle takes.
    """

    devices: int = 8
    envs: int = 4
    chunk_steps: int = 32
    median_ms: float = 16.0

    @property
    def batch_steps(self) -> int:
        """Two chunks of every device: what the preset of CartPole-v1 was tuned with."""
        return 2 * self.devices * self.envs * self.chunk_steps


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one mode.

    Attributes:
        steps_per_s: Environment steps a second, of the part that was measured.
        solved_steps: Environment steps until solved; None: it was not, or that was not asked.
        solved_s: Seconds from the first chunk to solved.
        versions: Policy versions published in all.
        lag_p50: Optimiser updates, of trained chunks.
        lag_p99: The same.
        balanced: Whether every chunk was accounted for.
    """

    spread: str
    mode: str
    seed: int
    steps_per_s: float
    solved_steps: int | None
    solved_s: float | None
    versions: int
    lag_p50: float
    lag_p99: float
    balanced: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both modes with one spread: medians over seeds, and their ratios."""

    spread: str
    slowest_to_fastest: float
    sync_steps_per_s: float
    async_steps_per_s: float
    steps_per_s_ratio: float | None
    sync_solved_steps: float | None
    async_solved_steps: float | None
    solved_steps_ratio: float | None
    sync_solved_s: float | None
    async_solved_s: float | None


def step_times(spread: str, devices: int, median_ms: float) -> list[float]:
    """What a step takes each device, in ms, the fastest first.

    Raises:
        ValueError: There is no such spread.
    """
    name, _, value = spread.partition("-")
    if spread == "equal":
        return [median_ms] * devices
    if spread == "straggler":
        return [*[median_ms] * (devices - 1), STRAGGLER * median_ms]
    if spread == "two-kinds":
        slower = devices // 2
        return [median_ms] * (devices - slower) + [SLOWER_KIND * median_ms] * slower
    if name == "lognormal":
        with contextlib.suppress(ValueError):
            sigma = float(value)
            normal = statistics.NormalDist()
            quantiles = [(n + 0.5) / devices for n in range(devices)]
            return [median_ms * math.exp(sigma * normal.inv_cdf(q)) for q in quantiles]
    raise ValueError(f"{spread}: use equal, lognormal-SIGMA, straggler or two-kinds")


def plan_of(fleet: Fleet, spread: str, mode: str, seed: int) -> DemoPlan:
    """The configurations of a run: the preset of CartPole-v1, and what differs between modes."""
    times = step_times(spread, fleet.devices, fleet.median_ms)
    preset = preset_of("CartPole-v1", "appo")
    settings = preset.training["training.settings"]
    keys: dict[str, object] = {
        "training.batch_steps": fleet.batch_steps,
        **{f"training.settings.{key}": value for key, value in settings.items()},
    }
    if mode == "sync":
        keys |= {"training.mode": "sync", "training.lockstep_chunks": 2}
    plan = DemoPlan(
        env_id=ENV,
        devices=fleet.devices,
        seed=seed,
        envs=fleet.envs,
        chunk_steps=fleet.chunk_steps,
        ahead=2 if mode == "sync" else 0,
        learner={key: Flag(key, value) for key, value in keys.items()},
        pace_timeout_s=FOREVER_S,
    )
    own = {
        device: {"step_ms": ms / fleet.envs}
        for device, ms in zip(plan.device_ids, times, strict=True)
    }
    return replace(plan, own_env_kwargs=own)


def summarize(runs: Sequence[Run], fleet: Fleet) -> list[Outcome]:
    """Medians and ratios by spread, in order of appearance. Unsolved counts as infinitely long."""
    found = []
    for spread in dict.fromkeys(run.spread for run in runs):
        times = step_times(spread, fleet.devices, fleet.median_ms)
        of = {mode: [r for r in runs if (r.spread, r.mode) == (spread, mode)] for mode in MODES}
        rate = {mode: median([run.steps_per_s for run in of[mode]]) for mode in MODES}
        steps = {mode: median([_or_inf(run.solved_steps) for run in of[mode]]) for mode in MODES}
        took = {mode: median([_or_inf(run.solved_s) for run in of[mode]]) for mode in MODES}
        found.append(
            Outcome(
                spread=spread,
                slowest_to_fastest=round(max(times) / min(times), 2),
                sync_steps_per_s=round(rate["sync"], 1),
                async_steps_per_s=round(rate["async"], 1),
                steps_per_s_ratio=_ratio(rate),
                sync_solved_steps=finite(steps["sync"]),
                async_solved_steps=finite(steps["async"]),
                solved_steps_ratio=_ratio(steps),
                sync_solved_s=finite(took["sync"]),
                async_solved_s=finite(took["async"]),
            )
        )
    return found


def _ratio(of: Mapping[str, float]) -> float | None:
    return round(of["async"] / of["sync"], 3) if all(map(math.isfinite, of.values())) else None


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run is.

    Attributes:
        measure_s: Seconds over which the rate is measured, unless it is solved first.
        solve: Whether it goes on until it is solved.
        timeout_s: Seconds after which it ends whatever happened.
    """

    measure_s: float
    solve: bool
    timeout_s: float


async def run_once(
    fleet: Fleet, spread: str, mode: str, seed: int, limits: Limits, directory: Path
) -> Run:
    """Starts a whole system, watches it, and stops it."""
    workspace = make_workspace(directory, plan_of(fleet, spread, mode, seed))
    async with contextlib.AsyncExitStack() as stack:
        processes = await stack.enter_async_context(
            Processes(workspace.logs, on_restart=lambda name, status: say(f"{name}: {status}"))
        )
        observer = await stack.enter_async_context(Observer(workspace.server, workspace.operator))
        await _start(processes, workspace)
        first: tuple[float, int] | None = None
        solved: tuple[float, int] | None = None
        began_s = time.monotonic()
        training, now_s = fleet_pb2.Training(), began_s
        async for training in _until(observer, began_s + limits.timeout_s):
            now_s = time.monotonic()
            # Every device has had its first policy, and made something with it.
            if first is None and training.env_steps >= fleet.batch_steps:
                first = (now_s, training.env_steps)
            if training.return_window >= WINDOW and training.return_mean >= THRESHOLD:
                solved = solved or (now_s, training.env_steps)
            over = first is not None and now_s - first[0] >= limits.measure_s
            if over and (solved is not None or not limits.solve):
                break
        steps_per_s = 0.0
        if first is not None and now_s > first[0]:
            steps_per_s = (training.env_steps - first[1]) / (now_s - first[0])
        await processes.stop(*(agent.name for agent in workspace.agents))
        await asyncio.sleep(1.0)  # the last reports
        audit = await observer.audit()
    return Run(
        spread=spread,
        mode=mode,
        seed=seed,
        steps_per_s=round(steps_per_s, 1),
        solved_steps=None if solved is None else solved[1],
        solved_s=None if solved is None or first is None else round(solved[0] - first[0], 2),
        versions=training.policy_version,
        lag_p50=training.lag_p50,
        lag_p99=training.lag_p99,
        balanced=audit is not None and audit.balanced,
    )


async def _start(processes: Processes, workspace: Workspace) -> None:
    await processes.start(workspace.learner)
    await processes.start(workspace.broker)
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", workspace.broker_port)
            writer.close()
            break
        await asyncio.sleep(0.05)
    for agent in workspace.agents:
        await processes.start(agent)


async def _until(observer: Observer, deadline_s: float) -> AsyncIterator[fleet_pb2.Training]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline_s):
            async for training in observer.watch_training():
                yield training


def text_of(outcomes: Sequence[Outcome]) -> str:
    """What a person reads."""
    rows = [tuple(asdict(outcome).values()) for outcome in outcomes]
    headings = (
        "spread",
        "slowest/fastest",
        "sync steps/s",
        "async steps/s",
        "ratio",
        "sync steps to solve",
        "async",
        "ratio",
        "sync s",
        "async s",
    )
    bars = f"bars: steps/s >= {BAR_RATE} x, steps to solve <= {BAR_STEPS} x"
    return f"{table(headings, rows)}\n\n{bars}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether all chunks were accounted for."""
    parser = argparse.ArgumentParser(
        prog="shoal bench async",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--spreads", default="equal,lognormal-0.5,lognormal-1,straggler")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=Fleet().devices)
    parser.add_argument("--median-ms", type=float, default=Fleet().median_ms)
    parser.add_argument("--measure-s", type=float, default=30.0, help="for each run")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for each run")
    parser.add_argument("--no-solve", action="store_true", help="measure the rate alone")
    parser.add_argument("--quick", action="store_true", help="one spread, ten seconds, no solving")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    fleet = Fleet(devices=given.devices, median_ms=given.median_ms)
    spreads = ["lognormal-1"] if given.quick else given.spreads.split(",")
    for spread in spreads:
        try:
            step_times(spread, fleet.devices, fleet.median_ms)
        except ValueError as error:
            parser.error(str(error))
    limits = Limits(
        measure_s=10.0 if given.quick else given.measure_s,
        solve=not (given.quick or given.no_solve),
        timeout_s=given.timeout_s,
    )
    os.chdir(CHECKOUT)  # where the devices find the environment
    machine = this_machine()
    runs: list[Run] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for spread in spreads:
            for mode in MODES:
                with tempfile.TemporaryDirectory(prefix="shoal-bench-async-") as scratch:
                    run = asyncio.run(run_once(fleet, spread, mode, seed, limits, Path(scratch)))
                runs.append(run)
                ended = "" if run.solved_steps is None else f", solved at {run.solved_steps:,}"
                say(f"{spread} {mode} seed {seed}: {run.steps_per_s:,.0f} steps/s{ended}")
    outcomes = summarize(runs, fleet)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "torch", "onnxruntime", "gymnasium", "numpy"),
            "fleet": asdict(fleet),
            "step_ms": {s: step_times(s, fleet.devices, fleet.median_ms) for s in spreads},
            "bars": {"steps_per_s_ratio": BAR_RATE, "solved_steps_ratio": BAR_STEPS},
            "runs": [asdict(run) for run in runs],
            "outcomes": [asdict(outcome) for outcome in outcomes],
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = document if given.format == "json" else f"{machine.text}\n\n{text_of(outcomes)}"
    sys.stdout.write(text + "\n")
    return 0 if all(run.balanced for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
