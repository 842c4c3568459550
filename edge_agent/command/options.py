"""The options of `shoal agent`, as Typer has them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file with the agent's configuration.")
]
FleetOption = Annotated[str | None, typer.Option(help="Name of the fleet.")]
IdentityOption = Annotated[
    Path | None, typer.Option(help="Directory with ca.pem, cert.pem, key.pem, name, policy.pub.")
]
StateOption = Annotated[
    Path | None, typer.Option("--state-dir", help="Directory of the spool and the policies.")
]
EnvOption = Annotated[
    str | None, typer.Option("--env", help="A gymnasium id, or module:attr.", metavar="ID")
]
EnvsOption = Annotated[int | None, typer.Option("--num-envs", help="Environments to step.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of the environments.")]
BrokerOption = Annotated[
    str | None, typer.Option("--broker", help="The MQTT broker.", metavar="HOST:PORT")
]
ServerOption = Annotated[
    str | None, typer.Option("--server", help="The parameter server.", metavar="HOST:PORT")
]
ModeOption = Annotated[
    str | None,
    typer.Option("--mode", help="What leaves the device: trajectories, or gradients of them."),
]
IntervalOption = Annotated[
    int | None,
    typer.Option("--update-interval", help="Environment steps from which a gradient is computed."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other key, such as actor.chunk_steps=32.", metavar="KEY=VALUE"),
]
LevelOption = Annotated[str, typer.Option(help="debug, info, warning or error.")]
EnvArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[ENV]", help="Look at this environment alone: a gymnasium id, or module:attr."
    ),
]
KwargsOption = Annotated[
    list[str] | None,
    typer.Option("--kwargs", help="An argument of ENV's constructor.", metavar="KEY=VALUE"),
]
HzOption = Annotated[float | None, typer.Option("--control-hz", help="Steps a second to hold.")]
PrefixOption = Annotated[Path, typer.Option(help="Where the agent is installed, in slots.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
