"""`shoal relay`: one watch upstream, and every device of a site behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.config import load_config
from shoal.logs import setup_logging

relay_app = typer.Typer()

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file with the relay's configuration.")
]
FleetOption = Annotated[str | None, typer.Option(help="Name of the fleet.")]
IdentityOption = Annotated[
    Path | None,
    typer.Option(help="Identity directory, made by `shoal pki issue NAME --relay --san HOST`."),
]
StateOption = Annotated[
    Path | None, typer.Option("--state-dir", help="Where it keeps policies and bundles.")
]
UpstreamOption = Annotated[
    str | None,
    typer.Option("--upstream", help="The learner, or another relay.", metavar="HOST:PORT"),
]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")]
PortOption = Annotated[
    int | None, typer.Option(help="Port to listen on; 0: any free one. (default: 50051)")
]


@relay_app.callback()
def relay() -> None:
    """A site's gateway: policies come over the wide network once, and go to many devices.

    It proves what it hands on as a device does, keeps it on disk, and serves the newest it knows
    while upstream is away. Rollouts, tasks and gradients go through it as well. Devices need
    nothing but its address as their parameter server.
    """


@relay_app.command()
def run(
    *,
    config: ConfigOption = None,
    fleet: FleetOption = None,
    identity: IdentityOption = None,
    state_dir: StateOption = None,
    upstream: UpstreamOption = None,
    host: HostOption = None,
    port: PortOption = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Relay policies until SIGTERM or Ctrl-C."""
    from cloud_learner.relay.app import run as run_relay
    from cloud_learner.relay.config import RelayConfig

    loaded = load_config(
        RelayConfig, config, overrides=_flags(fleet, identity, state_dir, upstream, host, port)
    )
    setup_logging(log_level)
    asyncio.run(run_relay(loaded))


@relay_app.command()
def check(
    *,
    config: ConfigOption = None,
    fleet: FleetOption = None,
    identity: IdentityOption = None,
    state_dir: StateOption = None,
    upstream: UpstreamOption = None,
    host: HostOption = None,
    port: PortOption = None,
) -> None:
    """Look at identity, state directory, port and upstream; start nothing."""
    from cloud_learner.relay.check import check as check_relay
    from cloud_learner.relay.config import RelayConfig

    loaded = load_config(
        RelayConfig, config, overrides=_flags(fleet, identity, state_dir, upstream, host, port)
    )
    findings = check_relay(loaded)
    for finding in findings:
        typer.echo(f"{'ok' if finding.ok else 'FAULT':9}{finding.name:18}{finding.detail}")
    raise typer.Exit(max((finding.exit_code for finding in findings), default=0))


def _flags(
    fleet: str | None,
    identity: Path | None,
    state_dir: Path | None,
    upstream: str | None,
    host: str | None,
    port: int | None,
) -> dict[str, object]:
    from shoal.config import Flag
    from shoal.endpoint import Endpoint

    found: dict[str, object] = {
        "fleet": Flag("--fleet", fleet),
        "identity": Flag("--identity", identity.absolute() if identity is not None else None),
        "state_dir": Flag("--state-dir", state_dir.absolute() if state_dir is not None else None),
        "server.host": Flag("--host", host),
        "server.port": Flag("--port", port),
    }
    if upstream is not None:
        endpoint = Endpoint.parse(upstream, what="--upstream")
        found["upstream.host"] = Flag("--upstream", endpoint.host)
        found["upstream.port"] = Flag("--upstream", endpoint.port)
    return found
