"""`shoal enroll`: tokens, requests, revocation, and the service that devices call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoalctl.enrollment.config import EnrollmentConfig, load_enrollment
from shoalctl.enrollment.store import APPROVED, DENIED, EnrollmentStore
from shoalctl.enrollment.tokens import TokenRecord, new_token
from shoalctl.enrollment.views import device_list, event_list, request_list, token_list
from shoalctl.option_names import present_name
from shoalctl.output import Format, write_listing

if TYPE_CHECKING:
    from shoalctl.enrollment.authority import Authority

MAX_USES = 100_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

enroll_app = typer.Typer(
    no_args_is_help=True, context_settings={"token_normalize_func": present_name}
)
token_app = typer.Typer(help="Secrets that devices trade for a certificate.", no_args_is_help=True)
enroll_app.add_typer(token_app, name="token")

Directory = Annotated[
    Path,
    typer.Option(
        "--fleet",
        "-f",
        envvar="SHOAL_FLEET_DIR",
        help="The directory that `shoal fleet init` made.",
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="table, wide, json or yaml.")]
DEFAULT_DIRECTORY = Path("fleet")


@dataclass(frozen=True, slots=True)
class Office:
    """What the commands work on."""

    config: EnrollmentConfig
    store: EnrollmentStore
    authority: Authority


@enroll_app.callback()
def enroll() -> None:
    """Let devices into a fleet, and out: in the fleet's directory, beside `shoal enroll serve`."""


@token_app.command("create")
def create_token(
    *,
    directory: Directory = DEFAULT_DIRECTORY,
    device: Annotated[str | None, typer.Option(help="The only name that it enrols.")] = None,
    uses: Annotated[int, typer.Option(min=1, max=MAX_USES, help="How many devices it enrols.")] = 1,
    ttl: Annotated[str, typer.Option(help="How long it is good: 30m, 1h, 7d.")] = "1h",
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="It may take the name of a device, whose certificates are revoked."
        ),
    ] = False,
) -> None:
    """Make a token and print it, once: only its hash is kept."""
    if device is not None:
        check_device_id(device)
        if uses != 1:
            raise ConfigError("--uses: a token for one --device is used once")
    elif replace:
        raise ConfigError("--replace needs --device: which name may be taken")
    token, now_s = new_token(), time.time()
    with _office(directory) as office, office.store.transaction():
        office.store.add_token(
            TokenRecord(
                token.id,
                token.digest,
                device,
                uses,
                0,
                now_s,
                now_s + parse_duration(ttl),
                revoked=False,
                replace=replace,
            )
        )
        office.store.add_event(
            "token_created",
            f"token {token.id}, for {uses} of {device or 'any name'}, good for {ttl}",
            severity="info",
            device_id=device or "",
            now_s=now_s,
        )
    typer.echo(token.text)


@token_app.command("ls")
def list_tokens(*, directory: Directory = DEFAULT_DIRECTORY, output: Output = Format.TABLE) -> None:
    """List the tokens. AGE is the time since one was made."""
    with _office(directory) as office:
        write_listing(token_list(office.store.tokens(), now_s=time.time()), output)


@token_app.command("revoke")
def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="What comes before the dot.")],
    *,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Take a token back; devices that it enrolled stay members."""
    with _office(directory) as office:
        if not office.store.revoke_token(token_id.partition(".")[0]):
            raise ConfigError(
                f"no token {token_id.partition('.')[0]!r}: `shoal enroll token ls` lists them"
            )


@enroll_app.command("ls")
def list_devices(
    *, directory: Directory = DEFAULT_DIRECTORY, output: Output = Format.TABLE
) -> None:
    """List the devices that were enrolled. AGE is the time since then."""
    with _office(directory) as office:
        write_listing(device_list(office.store.devices(), now_s=time.time()), output)


@enroll_app.command("requests")
def list_requests(
    *, directory: Directory = DEFAULT_DIRECTORY, output: Output = Format.TABLE
) -> None:
    """List the devices that came without a token and wait. Compare KEY with the device's."""
    with _office(directory) as office:
        write_listing(request_list(office.store.requests(), now_s=time.time()), output)


@enroll_app.command("approve")
def approve(
    device: Annotated[str, typer.Argument(metavar="DEVICE")],
    *,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Let a device in that came without a token: it has its certificate seconds later."""
    with _office(directory) as office:
        office.authority.decide(device, APPROVED)


@enroll_app.command("deny")
def deny(
    device: Annotated[str, typer.Argument(metavar="DEVICE")],
    *,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Turn a device away that came without a token."""
    with _office(directory) as office:
        office.authority.decide(device, DENIED)


@enroll_app.command("revoke")
def revoke(
    device: Annotated[str, typer.Argument(metavar="DEVICE")],
    *,
    directory: Directory = DEFAULT_DIRECTORY,
    certificate: Annotated[
        Path | None, typer.Option(help="Its cert.pem, if `shoal pki issue` made it.")
    ] = None,
) -> None:
    """Cut a device off: the broker and the learner drop it within seconds, and it can't renew."""
    from shoalctl.enrollment.revocation import follow_on_mosquitto, read_certificate

    with _office(directory) as office:
        known = read_certificate(certificate) if certificate is not None else None
        revoked = office.authority.revoke(device, certificate=known)
        follow_on_mosquitto(office.config, office.store)
    typer.echo(f"{device}: {revoked} certificates revoked", err=True)


@enroll_app.command("events")
def events(
    *,
    directory: Directory = DEFAULT_DIRECTORY,
    device: Annotated[str | None, typer.Option(help="Of this device only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """List what happened, the newest first: who came in, who was refused and why. With counts."""
    with _office(directory) as office:
        listing = event_list(
            office.store.events(device_id=device, limit=limit),
            office.store.counters(),
            now_s=time.time(),
        )
    write_listing(listing, output)


@enroll_app.command("fingerprint")
def fingerprint(*, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Print the sha256 of the fleet's CA, which a device pins until it has a certificate."""
    from shoalctl.pki.pki import FleetPki

    typer.echo(FleetPki.load(load_enrollment(directory).directory).fingerprint)


@enroll_app.command("serve")
def serve(
    *,
    directory: Directory = DEFAULT_DIRECTORY,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the service that devices enrol and renew at, until SIGTERM or Ctrl-C.

    It holds the intermediate's key: run it where nothing else does.
    """
    import asyncio

    from shoal.logs import get_logger, setup_logging
    from shoalctl.enrollment.server import run_enrollment

    setup_logging(log_level)
    config, log = load_enrollment(directory), get_logger("enrollment")
    asyncio.run(
        run_enrollment(
            config,
            on_ready=lambda port: log.info("enrollment_ready", host=config.host, port=port),
        )
    )


def parse_duration(text: str, *, flag: str = "--ttl") -> float:
    """Seconds in a text like `30m`, `1h` or `7d`.

    Args:
        text: What was given.
        flag: To which flag, for the message.

    Raises:
        ConfigError: It is not like that, or nothing.
    """
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()) or int(number) == 0:
        raise ConfigError(f"{flag} {text!r}: give a number and s, m, h or d, such as 30m or 7d")
    return float(int(number) * _UNITS[unit])


@contextmanager
def _office(directory: Path) -> Iterator[Office]:
    from shoalctl.enrollment.authority import Authority
    from shoalctl.pki.pki import FleetPki

    config = load_enrollment(directory)
    pki = FleetPki.load(config.directory)
    with EnrollmentStore(config.database) as store:
        authority = Authority(config, pki, store, redeem=lambda _: False, clock=time.time)
        yield Office(config, store, authority)
