"""`shoal flash`: from an image and a blank card to one that a device boots from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ConfigError
from shoalctl.flash.bundle.cli import bundle as bundle_command
from shoalctl.flash.seeds.settings import DEFAULT_USER
from shoalctl.flash.ssh.cli import flash_ssh, roll_back
from shoalctl.output import Format

flash_app = typer.Typer()
flash_app.command("ssh")(flash_ssh)
flash_app.command("rollback")(roll_back)

Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="table, wide, or one json or yaml envelope on stdout."),
]
INTERRUPTED = 130


@flash_app.callback()
def flash() -> None:
    """Install devices, over SSH or on cards, and tell each who it is."""


flash_app.command("bundle")(bundle_command)


@flash_app.command("list")
def list_targets(
    *,
    allow_internal: Annotated[
        bool, typer.Option("--allow-internal", help="Do not refuse disks that are built in.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """List the disks of this machine, and why each one is refused."""
    from shoalctl.flash.image.disks import list_disks
    from shoalctl.flash.image.views import disk_list
    from shoalctl.output import write_listing

    write_listing(disk_list(list_disks(), allow_internal=allow_internal), output)


@flash_app.command()
def image(
    *,
    image: Annotated[Path, typer.Option(help="An .img, or one in .xz, .gz, .zst or .zip.")],
    to: Annotated[Path, typer.Option(help="A whole disk such as /dev/sdb, or a file.")],
    sha256: Annotated[
        str | None,
        typer.Option(help="Of IMAGE as it is. (default: what IMAGE.sha256 says, if it is there)"),
    ] = None,
    image_sha256: Annotated[
        str | None, typer.Option("--image-sha256", help="Of the unpacked image.")
    ] = None,
    hostname: Annotated[str | None, typer.Option(help="The device's name.")] = None,
    user: Annotated[str, typer.Option(help="Who may log in with --ssh-key.")] = DEFAULT_USER,
    ssh_key: Annotated[
        list[str] | None,
        typer.Option(help="A public key, or a file of them; may be repeated. Turns SSH on."),
    ] = None,
    wifi_ssid: Annotated[str | None, typer.Option(help="The wireless network to join.")] = None,
    wifi_passphrase_file: Annotated[
        Path | None,
        typer.Option(help="Where its passphrase is. (default: $SHOAL_WIFI_PASSPHRASE, or asked)"),
    ] = None,
    wifi_country: Annotated[
        str | None, typer.Option(help="Whose radio rules apply: DE, US, ...")
    ] = None,
    wifi_hidden: Annotated[
        bool, typer.Option("--wifi-hidden", help="The network does not announce its name.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="The offline bundle that the device installs.")
    ] = None,
    fleet: Annotated[
        Path,
        typer.Option(
            envvar="SHOAL_FLEET_DIR", help="Whose key the bundle is signed with: its directory."
        ),
    ] = Path("fleet"),
    token: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_ENROLMENT_TOKEN", help="One-time enrolment token."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file that holds it.")] = None,
    seed_as: Annotated[
        str | None,
        typer.Option(help="cloud-init or first-run, for an image that is not recognized."),
    ] = None,
    size: Annotated[str | None, typer.Option(help="How large a file TO becomes: 4GB.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needs --expect-serial or --expect-size.")
    ] = False,
    expect_serial: Annotated[
        str | None, typer.Option(help="Refuse a disk with another serial number.")
    ] = None,
    expect_size: Annotated[
        str | None, typer.Option(help="Refuse a disk of another size: 31.9GB, or all bytes.")
    ] = None,
    allow_internal: Annotated[
        bool, typer.Option("--allow-internal", help="Do not refuse a disk that is built in.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted flash ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and write nothing.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Write an image to a disk or a file, seeded for one device, and check every byte of it."""
    from shoalctl.flash.image.command import FlashOptions, run_flash
    from shoalctl.flash.image.flasher import FlashInterrupted
    from shoalctl.flash.image.options import SeedOptions, read_settings
    from shoalctl.flash.image.views import flash_report
    from shoalctl.output import write_listing

    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    seeds = SeedOptions(
        hostname=hostname,
        user=user,
        ssh_keys=tuple(ssh_key or ()),
        wifi_ssid=wifi_ssid,
        wifi_passphrase_file=wifi_passphrase_file,
        wifi_country=wifi_country,
        wifi_hidden=wifi_hidden,
        bundle=bundle,
        fleet=fleet,
        token=token,
        token_file=token_file,
    )
    settings = read_settings(seeds, os.environ, ask=_ask_secret if interactive else None)
    options = FlashOptions(
        image=image,
        to=to,
        settings=settings,
        sha256=sha256,
        image_sha256=image_sha256,
        seed_as=seed_as,
        size=size,
        yes=yes,
        expect_serial=expect_serial,
        expect_size=expect_size,
        allow_internal=allow_internal,
        resume=resume,
        dry_run=dry_run,
    )
    try:
        report = run_flash(options, ask=_confirm if interactive else None)
    except FlashInterrupted as interruption:
        typer.echo(f"shoal: {interruption}", err=True)
        raise typer.Exit(INTERRUPTED) from interruption
    write_listing(flash_report(report), output)


def _ask_secret(question: str) -> str:
    return str(typer.prompt(question, hide_input=True, err=True))


def _confirm(question: str, answer: str) -> None:
    """Asks until the answer is typed.

    Raises:
        ConfigError: Something else was typed.
    """
    if typer.prompt(question, err=True).strip() != answer:
        raise ConfigError("that is not its name: nothing was written")
