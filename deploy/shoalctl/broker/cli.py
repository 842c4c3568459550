"""`shoal broker`: run the embedded broker, or write the files of another one."""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shoal.config import load_config
from shoal.logs import setup_logging
from shoalctl.broker.broker import (
    BrokerConfig,
    run_broker,
    write_mosquitto_files,
    write_nats_config,
)

broker_app = typer.Typer(
    help="The fleet's MQTT broker: mutual TLS, and each device under its own topics only."
)


class Kind(StrEnum):
    """A broker that Shoal writes the configuration of."""

    NATS = "nats"
    MOSQUITTO = "mosquitto"


ConfigPath = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file with the keys of these options.")
]
Fleet = Annotated[str | None, typer.Option(help="The fleet it serves.")]
IdentityPath = Annotated[Path | None, typer.Option(help="Identity directory of the broker.")]
StateDir = Annotated[Path | None, typer.Option(help="Where it keeps its messages.")]
Device = Annotated[
    list[str] | None, typer.Option("--device", help="A device to admit; may be repeated.")
]
DevicesFile = Annotated[
    Path | None,
    typer.Option(help="Devices to admit, one a line; followed while it runs. SIGHUP: at once."),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")]
Port = Annotated[
    int | None, typer.Option(help="Port to listen on; 0: any free one. (default: 8883)")
]


@broker_app.callback()
def broker() -> None:
    """The fleet's MQTT broker: mutual TLS, and each device under its own topics only."""


@broker_app.command()
def run(
    *,
    config: ConfigPath = None,
    fleet: Fleet = None,
    identity: IdentityPath = None,
    state_dir: StateDir = None,
    device: Device = None,
    devices_file: DevicesFile = None,
    host: Host = None,
    port: Port = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the embedded broker (NATS) until SIGTERM or Ctrl-C.

    A device added to the device list is admitted within a second; nobody else is disturbed.
    """
    setup_logging(log_level)
    settings = _settings(
        config,
        fleet=fleet,
        identity=identity,
        state_dir=state_dir,
        devices=device or None,
        devices_file=devices_file,
        host=host,
        port=port,
    )
    asyncio.run(run_broker(settings))


@broker_app.command()
def config(
    kind: Annotated[Kind, typer.Argument(help="The broker that will read the files.")],
    *,
    config: ConfigPath = None,
    fleet: Fleet = None,
    identity: IdentityPath = None,
    state_dir: StateDir = None,
    device: Device = None,
    devices_file: DevicesFile = None,
    host: Host = None,
    port: Port = None,
    user: Annotated[
        str | None, typer.Option(help="Account that Mosquitto runs as when root starts it.")
    ] = None,
) -> None:
    """Write the configuration files of a broker you run yourself, and print where they are."""
    settings = _settings(
        config,
        fleet=fleet,
        identity=identity,
        state_dir=state_dir,
        devices=device or None,
        devices_file=devices_file,
        host=host,
        port=port,
    )
    if kind is Kind.NATS:
        typer.echo(write_nats_config(settings))
    else:
        typer.echo(write_mosquitto_files(settings, user=user).config)


def _settings(path: Path | None, **flags: str | int | Path | list[str] | None) -> BrokerConfig:
    overrides = {
        # A path typed at the prompt is relative to it, not to the file.
        key: value.absolute() if isinstance(value, Path) else value
        for key, value in flags.items()
    }
    return load_config(BrokerConfig, path, overrides=overrides)
