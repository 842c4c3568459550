"""`shoal pki`: the keys of a fleet, made on this machine."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from shoal.delegation import Delegation, Purpose
from shoalctl.option_names import present_name
from shoalctl.output import Format, Item, Value, write_envelope
from shoalctl.pki.delegates import (
    DELEGATE_FILE,
    DELEGATION_LIFETIME,
    DelegationOffice,
    install,
    read_delegation,
)
from shoalctl.pki.pki import FleetPki, Role

pki_app = typer.Typer(context_settings={"token_normalize_func": present_name})

PolicyKey = Annotated[
    Path | None, typer.Option(help="Where the fleet's policy.key is kept, e.g. in a safe.")
]
Output = Annotated[
    Format, typer.Option("--output", "-o", help="table, or one json or yaml envelope on stdout.")
]
Directory = Annotated[Path, typer.Option("--fleet", "-f", help="Where the fleet's CA is.")]


@pki_app.callback()
def pki() -> None:
    """Make a fleet's certificate authority, and the identities of its devices and services."""


@pki_app.command()
def init(
    fleet: Annotated[str, typer.Argument(help="The fleet's name: a-z, 0-9 and '-'.")],
    *,
    directory: Annotated[Path, typer.Option("--dir", "-d", help="The directory to make.")] = Path(
        "pki"
    ),
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
    policy_key: PolicyKey = None,
    relay: Annotated[
        bool, typer.Option("--relay", help="For a relay: devices trust it, and it speaks for them.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make a key and certificate, and print the identity directory to copy to its owner.

    A learner's also gets a delegate of the policy key if --policy-key is given, else that key.
    """
    own_name = name in list(Role) and name not in {Role.DEVICE, Role.RELAY}
    role = Role.RELAY if relay else Role(name) if own_name else Role.DEVICE
    fleet = FleetPki.load(directory)
    lifetime = timedelta(days=days)
    delegate = None
    if role is Role.LEARNER and policy_key is not None:
        office = DelegationOffice(policy_key, fleet.fleet, fleet.policy_public_key)
        delegate = office.delegate(present=_learner(directory) / DELEGATE_FILE)
    typer.echo(
        fleet.issue(name, role, sans=san or (), directory=out, lifetime=lifetime, delegate=delegate)
    )


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


@pki_app.command()
def delegate(
    *,
    policy_key: Annotated[
        Path, typer.Option(help="Where the fleet's policy.key is, e.g. /media/safe/policy.key.")
    ],
    directory: Directory = Path("pki"),
    ttl: Annotated[
        str, typer.Option(help="How long the delegate may sign: 12h, 90d.")
    ] = f"{DELEGATION_LIFETIME.days}d",
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it. (default: delegate.key in FLEET/identities/learner)"),
    ] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Its number, if the last one's is lost.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Have the policy key delegate to a new key, which the learner signs with after a restart.

    Devices that took a policy of it refuse the delegates before it: so one is revoked too.
    """
    from shoalctl.enrollment.cli import parse_duration

    fleet = FleetPki.load(directory)
    path = out or _learner(directory) / DELEGATE_FILE
    office = DelegationOffice(policy_key, fleet.fleet, fleet.policy_public_key)
    lifetime = timedelta(seconds=parse_duration(ttl))
    made = office.delegate(present=path, lifetime=lifetime, generation=generation or 0)
    install(path, made)
    _show(path, made.delegation, output)
    first = (
        f"Put it into the learner's identity as {DELEGATE_FILE} and restart" if out else "Restart"
    )
    typer.echo(f"{first} the learner, which then signs with it: devices act on.", err=True)
    if (path.parent / policy_key.name).exists() and path.parent != policy_key.parent:
        typer.echo(
            f"Then remove {path.parent / policy_key.name}: the learner does not need it any more.",
            err=True,
        )


@pki_app.command()
def delegation(*, directory: Directory = Path("pki"), output: Output = Format.TABLE) -> None:
    """Show by which delegation the learner signs policies, and until when."""
    fleet = FleetPki.load(directory)
    path = _learner(directory) / DELEGATE_FILE
    _show(path, read_delegation(path, fleet.policy_public_key), output)


def _learner(directory: Path) -> Path:
    return directory / "identities" / "learner"


def _show(path: Path, delegation: Delegation, output: Format) -> None:
    item: Item = {
        "file": str(path),
        "fleet": delegation.fleet,
        "generation": delegation.generation,
        "public_key": delegation.public_key.hex(),
        "not_before_unix_s": delegation.not_before_s,
        "not_after_unix_s": delegation.not_after_s,
        "purposes": [_purpose(each) for each in sorted(delegation.purposes)],
    }
    if output in {Format.JSON, Format.YAML}:
        write_envelope("shoal.v1.Delegation", [item], output)
    else:
        typer.echo(f"{path}: generation {delegation.generation}, until {delegation.ends}")


def _purpose(number: int) -> Value:
    return Purpose(number).name.lower() if number in set(Purpose) else number
