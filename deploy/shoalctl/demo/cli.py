"""The flags of `shoal demo`."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

demo_app = typer.Typer(add_completion=False)
_FLEET, _LEARNING, _END = "The fleet", "Learning", "How it ends"


class BrokerKind(StrEnum):
    """Which broker a demo runs."""

    EMBEDDED = "embedded"
    MOSQUITTO = "mosquitto"


class Precision(StrEnum):
    """What is published."""

    INT8 = "int8"
    FP32 = "fp32"


class Mode(StrEnum):
    """What leaves the devices."""

    TRAJECTORIES = "trajectories"
    GRADIENTS = "gradients"


class Output(StrEnum):
    """What a demo writes to stdout."""

    TEXT = "text"
    JSON = "json"


@demo_app.command()
def demo(
    *,
    env: Annotated[
        str, typer.Option(help="A gymnasium id, or module:attr of your own.")
    ] = "CartPole-v1",
    env_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Keyword argument of the environment. May be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of environments and weights.")] = 0,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="appo, impala, sac, dqn, or module:Class of your own; by default what the "
            "environment was tried with, else appo.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="auto, mlp, cnn, lstm, attention, or module:function of your own.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="fp32: publish no int8 at all. By default int8, and fp32 only where int8 strays.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            help="Optimiser updates that a chunk may lag and still be trained from; -1: any.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from a policy exported in fp32, or from the file of a checkpoint.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep",
            help="Learner and devices wait for each other: the same seed gives the same policies.",
            rich_help_panel=_LEARNING,
        ),
    ] = False,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Each version waits for all devices: the baseline that async is held against.",
            rich_help_panel=_LEARNING,
        ),
    ] = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="gradients: devices compute them, and what they observe stays where it is.",
            rich_help_panel=_LEARNING,
        ),
    ] = Mode.TRAJECTORIES,
    update_interval: Annotated[
        int | None,
        typer.Option(
            help="With --mode gradients: environment steps of a device between two of them.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="With --mode gradients: parts of the parameters, an optimiser each.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the learner, e.g. training.settings.clip=0.1. May be repeated.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Device processes.", rich_help_panel=_FLEET)
    ] = None,
    envs: Annotated[
        int | None, typer.Option(help="Environments on each device.", rich_help_panel=_FLEET)
    ] = None,
    chunk_steps: Annotated[
        int | None, typer.Option(help="Steps in a chunk.", rich_help_panel=_FLEET)
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(
            help="Chunks a device records under one policy before it waits for the next; 0: it "
            "never waits.",
            rich_help_panel=_FLEET,
        ),
    ] = None,
    broker: Annotated[
        BrokerKind,
        typer.Option(
            help="The embedded broker, or an installed Mosquitto.", rich_help_panel=_FLEET
        ),
    ] = BrokerKind.EMBEDDED,
    until_return: Annotated[
        float | None,
        typer.Option(
            help="Solved when the mean return of the last 100 episodes reaches this; "
            "by default the environment's own threshold.",
            rich_help_panel=_END,
        ),
    ] = None,
    stop_after_steps: Annotated[
        int | None,
        typer.Option(
            help="End after so many environment steps, solved or not, with exit code 0.",
            rich_help_panel=_END,
        ),
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option(
            "--go-on", help="Once solved, go on to one of the other ends.", rich_help_panel=_END
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(help="Give up after this many seconds.", rich_help_panel=_END)
    ] = 600.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep keys, state and logs here; by default they are removed."),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="json: one envelope on stdout.")
    ] = Output.TEXT,
) -> None:
    """Runs broker, learner and devices as processes of this machine until the task is solved.

    Ends with 0 when it is solved and with 3 when it is not solved in time. Kill any of its
    processes: it is started again, and the run goes on.
    """
    started_s = time.monotonic()
    # Some environments greet on stdout when they are imported, and stdout is the envelope's alone.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    from shoalctl.demo.command import run_demo
    from shoalctl.demo.options import DemoOptions, PlanFlags, check_options, make_plan

    plan = make_plan(
        PlanFlags(
            env=env,
            seed=seed,
            mosquitto=broker is BrokerKind.MOSQUITTO,
            algorithm=algorithm,
            devices=devices,
            envs=envs,
            chunk_steps=chunk_steps,
            ahead=ahead,
            network=network,
            max_lag=max_lag,
            precision=precision,
            init=init,
            lockstep=lockstep,
            gradients=mode is Mode.GRADIENTS,
            update_interval=update_interval,
            shards=shards,
            sync=sync,
            sets=set_ or (),
            env_sets=env_set or (),
        )
    )
    options = DemoOptions(
        plan=plan,
        until_return=until_return,
        timeout_s=timeout_s,
        as_json=output is Output.JSON,
        directory=directory,
        stop_after_steps=stop_after_steps,
        go_on=go_on,
    )
    run_demo(check_options(options), started_s=started_s)
