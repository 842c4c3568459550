"""`shoal flash ssh` and `shoal flash rollback`: from a running machine to an acting device."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError
from shoalctl.output import Format

if TYPE_CHECKING:
    from shoalctl.flash.ssh.command import Report, Targets
    from shoalctl.flash.ssh.plan import Places
    from shoalctl.flash.ssh.preflight import Reason

Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="[USER@HOST]...", help="Also with :PORT.")
]
Inventory = Annotated[
    Path | None,
    typer.Option(
        help="TOML: a table `bundles` by arch, a list `hosts` of name, host, user, port, ..."
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(help="Of the inventory: a name, pi-*, or label=value; may be repeated."),
]
Parallel = Annotated[int, typer.Option(help="How many hosts at a time.")]
Identity = Annotated[
    list[Path] | None,
    typer.Option(help="A private key file. (default: your own keys, and the SSH agent's)"),
]
KnownHostsFile = Annotated[
    Path | None, typer.Option("--known-hosts", help="(default: ~/.ssh/known_hosts)")
]
AcceptHostKey = Annotated[
    str | None,
    typer.Option(help="The fingerprint that one unknown host shows: SHA256:..."),
]
Prefix = Annotated[Path, typer.Option(help="Where the agent is on a host.")]
NoSystemd = Annotated[
    bool,
    typer.Option("--no-systemd", help="The host has none: something else runs `shoal-slots run`."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Log in, look, print every step, and change nothing.")
]
Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="table, wide, or one json or yaml envelope on stdout."),
]
PREFIX = Path("/opt/shoal")


def flash_ssh(
    hosts: Hosts = None,
    *,
    inventory: Inventory = None,
    limit: Limit = None,
    parallel: Parallel = 8,
    bundle: Annotated[
        list[Path] | None,
        typer.Option(help="From `shoal flash bundle`; one an architecture, may be repeated."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="-: read the one-time enrolment token from stdin.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the enrolment token.")
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="The fleet's directory: its key signed the bundle, and each device that is not "
            "enrolled gets a token of its own. (default, for the key: $SHOAL_FLEET_DIR, or ./fleet)"
        ),
    ] = None,
    device_id: Annotated[
        str | None, typer.Option(help="The name a single host enrols with. (default: its own)")
    ] = None,
    identity: Identity = None,
    known_hosts: KnownHostsFile = None,
    accept_host_key: AcceptHostKey = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="clock, disk or memory: don't refuse a host for it; may be repeated."),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Don't wait until the agent has acted.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(min=1.0, help="How long to wait for it, seconds.")
    ] = 600.0,
    retries: Annotated[int, typer.Option(min=0, help="How often a lost link is made again.")] = 3,
    prefix: Prefix = PREFIX,
    staging: Annotated[
        Path | None,
        typer.Option(help="Where the bundle is uploaded to. (default: ~/.cache/shoal/flash there)"),
    ] = None,
    no_systemd: NoSystemd = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Install an offline bundle on running machines, beside what runs there, and see it act.

    Safe to run again at any time: it goes on where it was, and says so where nothing is left to do.
    """
    _need_asyncssh()
    from dataclasses import replace

    from shoalctl.flash.ssh.command import run_flash_ssh
    from shoalctl.flash.ssh.settings import FlashSettings
    from shoalctl.flash.ssh.tokens import read_token_source

    targets = _targets(hosts, inventory, limit, parallel, identity, known_hosts, accept_host_key)
    if token == "-":  # noqa: S105 - the sign for stdin
        targets = replace(targets, interactive=False)
    settings = FlashSettings(
        places=_places(prefix, staging, systemd=not no_systemd),
        allow=_reasons(allow or ()),
        wait_s=None if no_wait else wait_s,
        retries=retries,
        dry_run=dry_run,
    )
    source = read_token_source(token, token_file, fleet, sys.stdin)
    report = run_flash_ssh(
        targets,
        bundle or (),
        settings,
        source,
        fleet=fleet or Path(os.environ.get("SHOAL_FLEET_DIR", "fleet")),
        device_id=device_id,
    )
    _finish(report, output)


def roll_back(
    hosts: Hosts = None,
    *,
    inventory: Inventory = None,
    limit: Limit = None,
    parallel: Parallel = 8,
    reason: Annotated[str, typer.Option(help="Why, for the device's history.")] = "asked for",
    identity: Identity = None,
    known_hosts: KnownHostsFile = None,
    accept_host_key: AcceptHostKey = None,
    prefix: Prefix = PREFIX,
    no_systemd: NoSystemd = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Have machines go back to the slot beside the running one."""
    _need_asyncssh()
    from shoalctl.flash.ssh.command import run_rollback
    from shoalctl.flash.ssh.settings import FlashSettings

    targets = _targets(hosts, inventory, limit, parallel, identity, known_hosts, accept_host_key)
    settings = FlashSettings(places=_places(prefix, None, systemd=not no_systemd), dry_run=dry_run)
    _finish(run_rollback(targets, settings, reason), output)


def _finish(report: Report, output: Format) -> None:
    from shoalctl.flash.ssh.result_views import host_results, planned_lines
    from shoalctl.output import printable, write_listing

    if output in {Format.TABLE, Format.WIDE}:
        for line in planned_lines(report):
            typer.echo(printable(line))
    write_listing(host_results(report), output)
    if report.exit_code:
        failed = [result for result in report.results if not result.ok]
        for result in failed:
            typer.echo(f"shoal: {result.host}: {printable(result.reason)}", err=True)
        raise typer.Exit(report.exit_code)


def _targets(
    hosts: list[str] | None,
    inventory: Path | None,
    limit: list[str] | None,
    parallel: int,
    identity: list[Path] | None,
    known_hosts: Path | None,
    accept_host_key: str | None,
) -> Targets:
    from shoalctl.flash.ssh.command import Targets

    return Targets(
        hosts=tuple(hosts or ()),
        inventory=inventory,
        limits=tuple(limit or ()),
        parallel=parallel,
        identities=tuple(identity or ()),
        known_hosts=known_hosts,
        accept_host_key=accept_host_key,
        interactive=sys.stdin.isatty() and sys.stderr.isatty(),
    )


def _places(prefix: Path, staging: Path | None, *, systemd: bool) -> Places:
    from shoalctl.flash.ssh.plan import Places

    for option, path in (("--prefix", prefix), ("--staging", staging)):
        if path is not None and (not path.is_absolute() or ".." in path.parts):
            raise ConfigError(f"{option} {path}: give an absolute path on the host")
    if systemd and prefix != PREFIX:
        raise ConfigError(f"--prefix {prefix}: units are for {PREFIX}; pass --no-systemd with it")
    return Places(str(prefix), str(staging) if staging else "", systemd)


def _reasons(names: list[str] | tuple[str, ...]) -> frozenset[Reason]:
    from shoalctl.flash.ssh.preflight import WAIVABLE

    waivable = {reason.value: reason for reason in WAIVABLE}
    for name in names:
        if name not in waivable:
            raise ConfigError(f"--allow {name}: use {', '.join(waivable)}")
    return frozenset(waivable[name] for name in names)


def _need_asyncssh() -> None:
    """Checks that what speaks SSH is installed.

    Raises:
        ConfigError: It isn't.
    """
    try:
        import asyncssh  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        raise ConfigError(
            "this needs asyncssh, which is not installed: pip install 'shoal[ops]'"
        ) from error
