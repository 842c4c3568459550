"""`shoal pki`: the keys of a fleet, made on this machine."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from shoalctl.pki.pki import FleetPki, Role

pki_app = typer.Typer()

Directory = Annotated[Path, typer.Option("--dir", "-d", help="Where the fleet's CA is.")]


@pki_app.callback()
def pki() -> None:
    """Make a fleet's certificate authority, and the identities of its devices and services."""


@pki_app.command()
def init(
    fleet: Annotated[str, typer.Argument(help="The fleet's name: a-z, 0-9 and '-'.")],
    *,
    directory: Directory = Path("pki"),
) -> None:
    """Make the CA and the policy signing key of a new fleet, and print where they are.

    Whoever reads that directory can add devices and sign policies: keep it off the devices.
    """
    typer.echo(FleetPki.create(directory, fleet).directory)


@pki_app.command()
def issue(
    name: Annotated[
        str, typer.Argument(help="A device's or relay's id, or learner, operator, broker, server.")
    ],
    *,
    directory: Directory = Path("pki"),
    san: Annotated[
        list[str] | None,
        typer.Option(help="A host name or address that peers reach it by; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Identity directory to make. (default: identities/NAME)")
    ] = None,
    relay: Annotated[
        bool, typer.Option("--relay", help="For a relay: devices trust it, and it speaks for them.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make a key and certificate, and print the identity directory to copy to its owner."""
    own_name = name in list(Role) and name not in {Role.DEVICE, Role.RELAY}
    role = Role.RELAY if relay else Role(name) if own_name else Role.DEVICE
    fleet = FleetPki.load(directory)
    lifetime = timedelta(days=days)
    typer.echo(fleet.issue(name, role, sans=san or (), directory=out, lifetime=lifetime))


@pki_app.command()
def renew(
    identity: Annotated[Path, typer.Argument(help="An identity directory.")],
    *,
    directory: Directory = Path("pki"),
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
) -> None:
    """Give an identity's key a new certificate; a service reads it when it is started again."""
    certificate = FleetPki.load(directory).renew(identity, lifetime=timedelta(days=days))
    typer.echo(f"{identity}: until {certificate.not_valid_after_utc:%Y-%m-%d}")


@pki_app.command("renew-intermediate")
def renew_intermediate(
    *,
    directory: Directory = Path("pki"),
    root: Annotated[
        Path | None, typer.Option(help="Where ca.key is kept. (default: beside the rest)")
    ] = None,
) -> None:
    """Certify the intermediate anew, for five years; needs the root's key, devices notice nothing.

    Restart `shoal enroll serve` and give the services new certificates (`shoal pki renew`).
    """
    pki = FleetPki.load(directory).renew_intermediate(root or directory)
    typer.echo(f"{pki.directory}: until {pki.issuer.not_valid_after_utc:%Y-%m-%d}")
