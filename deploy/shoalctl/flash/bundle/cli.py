"""`shoal flash bundle` as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoalctl.output import Format


def bundle(
    *,
    arch: Annotated[str, typer.Option(help="aarch64 or x86_64: `uname -m` of the device.")],
    python: Annotated[str, typer.Option(help="Of the device, such as 3.11.")] = "3.11",
    fleet: Annotated[
        Path,
        typer.Option(
            "--fleet", "-f", envvar="SHOAL_FLEET_DIR", help="What `shoal fleet init` made."
        ),
    ] = Path("fleet"),
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Your environment: a directory to build, a wheel, or a requirement; repeatable.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", help="What devices step: a gymnasium id, or module:attr."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="An agent.toml; the fleet's addresses are filled in."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", help="Of the bundle. (default: Shoal's, and a digest)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file, or a directory for it.")] = None,
    glibc: Annotated[str, typer.Option(help="The oldest C library among the devices.")] = "2.28",
    wheels: Annotated[
        Path | None,
        typer.Option(help="Where wheels are kept for the next time. (default: in ~/.cache)"),
    ] = None,
    constraint: Annotated[
        list[Path] | None,
        typer.Option("--constraint", help="A constraints file of pip's; repeatable."),
    ] = None,
    policy_key: Annotated[
        Path | None, typer.Option(help="The signing key, if it is kept elsewhere.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the package index.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look for newer wheels than the last time.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Find all wheels, and write no bundle.")
    ] = False,
    output: Annotated[
        Format,
        typer.Option("--output", "-o", help="table, wide, or one json or yaml envelope on stdout."),
    ] = Format.TABLE,
) -> None:
    """Pack all that a device is installed from into one signed file; it needs no network there."""
    from shoalctl.flash.bundle.command import BundleOptions, run_bundle
    from shoalctl.flash.bundle.target import Target
    from shoalctl.flash.bundle.views import bundle_report
    from shoalctl.output import write_listing

    report = run_bundle(
        BundleOptions(
            fleet=fleet,
            target=Target.parse(arch, python, glibc),
            packages=tuple(packages or ()),
            out=out,
            env=env,
            version=version,
            config=config,
            policy_key=policy_key,
            wheels=wheels,
            constraints=tuple(constraint or ()),
            offline=offline,
            refresh=refresh,
            dry_run=dry_run,
        ),
        say=lambda line: typer.echo(f"shoal: {line}", err=True),
    )
    write_listing(bundle_report(report), output)
