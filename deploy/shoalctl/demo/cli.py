"""The flags of `shoal demo`."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

demo_app = typer.Typer(add_completion=False)


class BrokerKind(StrEnum):
    """Which broker a demo runs."""

    EMBEDDED = "embedded"
    MOSQUITTO = "mosquitto"


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
    devices: Annotated[int, typer.Option(help="Device processes.")] = 4,
    envs: Annotated[int, typer.Option(help="Environments on each device.")] = 8,
    seed: Annotated[int, typer.Option(help="Of environments and weights.")] = 0,
    until_return: Annotated[
        float | None,
        typer.Option(
            help="Solved when the mean return of the last 100 episodes reaches this; "
            "by default the environment's own threshold."
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 600.0,
    broker: Annotated[
        BrokerKind, typer.Option(help="The embedded broker, or an installed Mosquitto.")
    ] = BrokerKind.EMBEDDED,
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
    from shoalctl.demo.command import DemoOptions, check_options, run_demo
    from shoalctl.demo.workspace import DemoPlan

    plan = DemoPlan(
        env_id=env,
        devices=devices,
        seed=seed,
        envs=envs,
        mosquitto=broker is BrokerKind.MOSQUITTO,
    )
    options = DemoOptions(
        plan=plan,
        until_return=until_return,
        timeout_s=timeout_s,
        as_json=output is Output.JSON,
        directory=directory,
    )
    run_demo(check_options(options), started_s=started_s)
