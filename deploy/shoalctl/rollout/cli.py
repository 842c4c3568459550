"""`shoal rollout`: gives policies and agents to a fleet in waves, and takes back what fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError, ShoalError
from shoal.policy_version import parse_policy_version
from shoalctl.fleet.cli import IdentityPath, Output, Server, Timeout
from shoalctl.fleet.curve import DEFAULT_SERVER
from shoalctl.output import Format, plain, printable, write_envelope, write_listing

if TYPE_CHECKING:
    from shoal.v1 import rollout_pb2
    from shoalctl.output import Value
    from shoalctl.rollout.client import RolloutClient

SCHEMA = "shoal.v1.Rollout"

rollout_app = typer.Typer()
bundles_app = typer.Typer()
rollout_app.add_typer(bundles_app, name="bundles")

RolloutId = Annotated[
    int, typer.Argument(metavar="[ID]", help="Its number. (default: the newest)", min=0)
]
Reason = Annotated[str, typer.Option("--reason", help="Why, for people: it is kept and shown.")]


@rollout_app.callback()
def rollout() -> None:
    """Give a policy or an agent to devices in waves, and take it back where they fail.

    A device counts as succeeded when it acted so many episodes on it, and never because something
    was sent to it. One that does not answer holds up nothing.
    """


@bundles_app.callback()
def bundles() -> None:
    """Put bundles of the agent where devices can fetch them, and see which are there."""


@rollout_app.command("start")
def start(
    *,
    identity: IdentityPath,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Version of the bundle.", metavar="VERSION")
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="A policy: 7, v7, or latest.", metavar="VERSION")
    ] = None,
    wave: Annotated[
        str, typer.Option("--wave", help="How many devices, wave after wave; at last all.")
    ] = "1,10%,100%",
    episodes: Annotated[
        int, typer.Option("--episodes", help="To act on it before a device counts as succeeded.")
    ] = 3,
    wave_timeout: Annotated[
        str, typer.Option("--wave-timeout", help="That a device has for it: 90s, 10m, 1h.")
    ] = "10m",
    max_failures: Annotated[
        str, typer.Option("--max-failures", help="Part of the devices that may fail.")
    ] = "5%",
    min_failures: Annotated[
        int, typer.Option("--min-failures", help="So many fail before a wave ends early.")
    ] = 1,
    devices: Annotated[
        str, typer.Option("--devices", help="Patterns of device ids: 'pi-*,lab-?'.", metavar="GLOB")
    ] = "",
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Add this bundle first, and roll it out.")
    ] = None,
    reason: Reason = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first wave, and change nothing.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 30.0,
) -> None:
    """Start one. While a policy's goes on, the other devices are held at what they have."""
    from cloud_learner.rollout.messages import plan_pb
    from cloud_learner.rollout.plan import Kind, Plan, parse_duration, parse_share, parse_waves

    if (policy is None) == (agent is None and bundle is None):
        raise ConfigError("give one of --policy VERSION, and --agent VERSION or --bundle FILE")
    with rollout_client(server, identity, timeout_s) as client:
        version = agent if policy is None else str(_number_of(policy, client))
        if bundle is not None:
            added = _send(client, bundle, identity, timeout_s, dry_run=dry_run)
            if agent not in (None, added.version):
                raise ConfigError(f"{bundle} is of version {added.version}, --agent says {agent}")
            version = added.version
        plan = Plan(
            kind=Kind.AGENT if policy is None else Kind.POLICY,
            version=version or "",
            waves=parse_waves(wave),
            episodes=episodes,
            wave_timeout_s=parse_duration(wave_timeout),
            max_failures=parse_share(max_failures),
            min_failures=min_failures,
            devices=devices,
            reason=reason,
        )
        started = client.start(plan_pb(plan), dry_run=dry_run)
    _show(started, output)


@rollout_app.command("status")
def status(
    rollout_id: RolloutId = 0,
    *,
    identity: IdentityPath,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until it ends, a line a change.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Show one: every device, how far it is, and why. With --watch it exits with 1 if aborted."""
    from shoalctl.views.rollouts import line_of, rollout_item

    with rollout_client(server, identity, timeout_s) as client:
        if not watch:
            _show(client.rollout(rollout_id), output)
            return
        item: dict[str, Value] = {}
        for each in client.watch(rollout_id, lost=lambda why: typer.echo(why, err=True)):
            item = rollout_item(each)
            if output in {Format.JSON, Format.YAML}:
                typer.echo(json.dumps(plain({"schema": SCHEMA, "items": [item]})))
            else:
                typer.echo(printable(line_of(item)))
    if item.get("state") == "aborted":
        raise ShoalError(f"rollout {item['id']} was aborted: {item['reason']}")


@rollout_app.command("ls")
def list_rollouts(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List the rollouts, the newest first. AGE is the time since one was started."""
    from shoalctl.views.rollouts import rollout_list

    with rollout_client(server, identity, timeout_s) as client:
        response = client.rollouts()
    write_listing(rollout_list(response.rollouts), output)


@rollout_app.command("pause")
def pause(
    rollout_id: RolloutId = 0,
    *,
    identity: IdentityPath,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 30.0,
) -> None:
    """Let no further device join, and no time count; those in a wave go on."""
    _command("pause", rollout_id, identity, reason, server, output, timeout_s, dry_run=dry_run)


@rollout_app.command("resume")
def resume(
    rollout_id: RolloutId = 0,
    *,
    identity: IdentityPath,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 30.0,
) -> None:
    """Go on with one that was paused."""
    _command("resume", rollout_id, identity, reason, server, output, timeout_s, dry_run=dry_run)


@rollout_app.command("abort")
def abort(
    rollout_id: RolloutId = 0,
    *,
    identity: IdentityPath,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 30.0,
) -> None:
    """End one, wherever it is: its devices go back to what they had."""
    _command("abort", rollout_id, identity, reason, server, output, timeout_s, dry_run=dry_run)


@bundles_app.command("ls")
def list_bundles(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List the bundles that devices can fetch."""
    from shoalctl.views.rollouts import bundle_list

    with rollout_client(server, identity, timeout_s) as client:
        response = client.bundles()
    write_listing(bundle_list(response.bundles), output)


@bundles_app.command("add")
def add_bundle(
    file: Annotated[Path, typer.Argument(help="What `shoal flash bundle` made.")],
    *,
    identity: IdentityPath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, and send nothing.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 600.0,
) -> None:
    """Put a bundle where devices can fetch it: it is checked here and there, byte by byte."""
    from shoalctl.views.rollouts import bundle_list

    with rollout_client(server, identity, timeout_s) as client:
        bundle = _send(client, file, identity, timeout_s, dry_run=dry_run)
    write_listing(bundle_list([bundle]), output)


def _number_of(policy: str, client: RolloutClient) -> int:
    from shoalctl.views.policies import policy_of

    number = parse_policy_version(policy)
    return policy_of(client.policies().policies, None).version if number is None else number


def _send(
    client: RolloutClient, path: Path, identity: Path, timeout_s: float, *, dry_run: bool
) -> rollout_pb2.AgentBundle:
    from shoal.bundle_archive import check_archive
    from shoal.identity import Identity
    from shoal.v1 import rollout_pb2 as pb
    from shoalctl.rollout.upload import Upload

    manifest = check_archive(path, Identity.load(identity).policy_public_key)
    if dry_run:
        return pb.AgentBundle(
            version=manifest.version,
            arch=manifest.arch,
            python=manifest.python,
            digest=bytes.fromhex(manifest.digest),
            bundle_bytes=path.stat().st_size,
        )
    with Upload(path.name, path.stat().st_size) as upload:
        return client.add_bundle(path, timeout_s=timeout_s, sent=upload.sent)


def _command(
    name: str,
    rollout_id: int,
    identity: Path,
    reason: str,
    server: str,
    output: Format,
    timeout_s: float,
    *,
    dry_run: bool,
) -> None:
    from shoal.v1 import rollout_pb2 as pb

    commands = {
        "pause": pb.ROLLOUT_COMMAND_PAUSE,
        "resume": pb.ROLLOUT_COMMAND_RESUME,
        "abort": pb.ROLLOUT_COMMAND_ABORT,
    }
    with rollout_client(server, identity, timeout_s) as client:
        if dry_run:
            _show(client.rollout(rollout_id), output)
            return
        _show(client.command(rollout_id, commands[name], reason), output)


def _show(found: rollout_pb2.Rollout, output: Format) -> None:
    from shoalctl.views.rollouts import describe_rollout, member_list, rollout_item

    item = rollout_item(found)
    if output in {Format.JSON, Format.YAML}:
        write_envelope(SCHEMA, [item], output)
        return
    for line in describe_rollout(item):
        typer.echo(printable(line))
    typer.echo()
    write_listing(member_list(item), output)


@contextmanager
def rollout_client(server: str, identity: Path, timeout_s: float) -> Iterator[RolloutClient]:
    """Asks one fleet for rollouts, as its operator."""
    from shoal.identity import Identity
    from shoalctl.rollout.client import RolloutClient

    with RolloutClient(server, Identity.load(identity), timeout_s=timeout_s) as client:
        yield client
