"""`shoal devices`, `shoal policy` and `shoal fleet`: what the learner's server knows of the fleet.

gRPC is loaded when a question is asked, so that help and mistakes are answered at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ShoalError
from shoal.policy_version import parse_policy_version
from shoalctl.fleet.curve import DEFAULT_SERVER, NO_TRAJECTORIES, curve
from shoalctl.fleet.init import init
from shoalctl.output import Format, printable, write_envelope, write_listing

if TYPE_CHECKING:
    from shoalctl.fleet.client import FleetClient


devices_app = typer.Typer()
policy_app = typer.Typer()
fleet_app = typer.Typer()

Server = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        envvar="SHOAL_OPERATOR_SERVER",
        help="host:port of the learner's gRPC endpoint.",
    ),
]
IdentityPath = Annotated[
    Path,
    typer.Option(
        "--identity",
        "-i",
        envvar="SHOAL_OPERATOR_IDENTITY",
        help="Identity directory of the fleet's operator.",
    ),
]
Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="table, wide, or one json or yaml envelope on stdout."),
]
Timeout = Annotated[float, typer.Option("--timeout-s", help="How long the answer may take.")]


@devices_app.callback()
def devices() -> None:
    """See the devices of a fleet: their health, their policy, and the age of what is shown."""


@policy_app.callback()
def policy() -> None:
    """See the policy versions a learner has published, compare them, and keep some."""


@fleet_app.callback()
def fleet() -> None:
    """Make a fleet, and account for every chunk that one has produced."""


fleet_app.command("init")(init)
fleet_app.command("curve")(curve)


@devices_app.command("ls")
def list_devices(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List the devices. AGE is the time since a device last reported; the row is that old."""
    from shoalctl.views.devices import device_list, unwell_lines

    with fleet_client(server, identity, timeout_s) as client:
        response = client.devices()
    write_listing(device_list(response.devices), output)
    if output is Format.TABLE:
        for line in unwell_lines(response.devices):
            typer.echo(printable(line), err=True)


@devices_app.command("events")
def list_events(
    device_id: Annotated[
        str | None, typer.Argument(metavar="[DEVICE]", help="About this device only.")
    ] = None,
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="Of this kind only: NAME, or NAME.REASON; repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="No longer ago than: 30m, 1h, 7d.", metavar="TIME")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 200,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on with what happens, a line each.")
    ] = False,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List what happened in the whole fleet, newest first, and how often each kind did.

    What devices tell, and whom the learner, the enrolment service and the broker refused. With
    --watch and -o json: one JSON object a line, oldest first.
    """
    from shoalctl.enrollment.cli import parse_duration
    from shoalctl.events.watch import watch_events
    from shoalctl.views.events import event_list

    max_age_s = 0.0 if since is None else parse_duration(since, flag="--since")
    about, kinds = device_id or "", tuple(kind or ())
    with fleet_client(server, identity, timeout_s) as client:
        response = client.events(about, kinds=kinds, max_age_s=max_age_s, limit=limit)
        if watch:
            watch_events(client, response, about, kinds=kinds, how=output)
            return
    write_listing(event_list(response), output)


@devices_app.command("describe")
def describe_device(
    device_id: Annotated[str, typer.Argument(metavar="DEVICE", help="Its device id.")],
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Show all that is known of one device, with ages, and its latest events."""
    from shoalctl.views.devices import describe, device_detail, event_list

    with fleet_client(server, identity, timeout_s) as client:
        item = device_detail(client.device(device_id))
    if output in {Format.JSON, Format.YAML}:
        write_envelope("shoal.v1.Device", [item], output)
        return
    for line in describe(item):
        typer.echo(printable(line))
    typer.echo()
    write_listing(event_list(item), output)


@policy_app.command("ls")
def list_policies(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    limit: Annotated[
        int, typer.Option(min=0, help="How many of the newest a table has; 0: all of them.")
    ] = 50,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List the policy versions, newest first. AGE is the time since a version was published.

    json and yaml have all that are kept.
    """
    from shoalctl.views.policies import policy_list

    with fleet_client(server, identity, timeout_s) as client:
        policies = client.policies().policies
    people = output in {Format.TABLE, Format.WIDE}
    shown = policies[:limit] if people and limit else policies
    write_listing(policy_list(shown), output)
    if len(shown) < len(policies):
        older = len(policies) - len(shown)
        typer.echo(f"{older} older versions are kept: --limit 0 lists all", err=True)


@policy_app.command("show")
def show_policy(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="7, v7, or latest.")],
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Show all that is known of one policy version: its size, its gaps, and who runs it, and how.

    The gap by quantization is KL(fp32 || as published) on recent observations. The gap by staleness
    is KL(trained || that version), as the learner found it in batches that this version alone made.
    """
    from shoalctl.views.policies import describe_policy, policy_item, policy_of

    number = parse_policy_version(version)
    with fleet_client(server, identity, timeout_s) as client:
        found = policy_of(client.policies().policies, number)
        item = policy_item(found, client.devices().devices)
    if output in {Format.JSON, Format.YAML}:
        write_envelope("shoal.v1.Policy", [item], output)
        return
    for line in describe_policy(item):
        typer.echo(printable(line))


@fleet_app.command("audit")
def audit(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Account for every chunk, by device and in total. Exits with 1 if they do not add up.

    produced = trained + expired + dropped + rejected + in flight. AGE is the time since the device
    last reported what it produced.
    """
    from shoalctl.views.audit import audit_list

    with fleet_client(server, identity, timeout_s) as client:
        response = client.audit()
        of_gradients = not response.total.produced and any(
            device.gradients for device in client.devices().devices
        )
    if of_gradients:
        typer.echo(NO_TRAJECTORIES, err=True)
    write_listing(audit_list(response), output)
    if not response.total.balanced:
        unbalanced = [entry.device_id for entry in response.devices if not entry.audit.balanced]
        raise ShoalError(
            f"the chunks of fleet {client.fleet} do not add up: "
            f"{', '.join(unbalanced) or 'in total'}; see `shoal devices describe`"
        )


@contextmanager
def fleet_client(server: str, identity: Path, timeout_s: float) -> Iterator[FleetClient]:
    """Asks one fleet, as its operator."""
    from shoal.identity import Identity
    from shoalctl.fleet.client import FleetClient

    with FleetClient(server, Identity.load(identity), timeout_s=timeout_s) as client:
        yield client
