"""`shoal policy`: the versions that a learner has published, compared and kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.policy_version import parse_policy_version
from shoalctl.fleet.cli import IdentityPath, Output, Server, Timeout, fleet_client
from shoalctl.fleet.curve import DEFAULT_SERVER
from shoalctl.output import Format, Value, printable, size, write_envelope, write_listing

if TYPE_CHECKING:
    from shoal.spaces import EnvSpec
    from shoal.v1 import fleet_pb2
    from shoalctl.policies.client import PolicyClient

policy_app = typer.Typer()

Version = Annotated[str, typer.Argument(metavar="VERSION", help="7, v7, or latest.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for people: an event keeps it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be, and change nothing.")]


@policy_app.callback()
def policy() -> None:
    """See the policy versions a learner has published, compare them, and keep some."""


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
    version: Version,
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


@policy_app.command("diff")
def diff(
    first: Annotated[str, typer.Argument(metavar="VERSION", help="The first: 7, v7, or latest.")],
    second: Annotated[str, typer.Argument(metavar="VERSION", help="The second: 7, v7, or latest.")],
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 30.0,
) -> None:
    """Show how two versions differ: integers and scales, size of the refresh, gaps, decisions.

    Both are fetched, proven, and compared here. Decisions are those on the golden observations of
    both, greedy; KL is KL(first || second).
    """
    from cloud_learner.downlink.policy_client import fetch_published
    from shoal.identity import Identity
    from shoalctl.policies.difference import difference_of
    from shoalctl.views.policies import policy_of
    from shoalctl.views.policy_difference import difference_item, difference_lines

    numbers = parse_policy_version(first), parse_policy_version(second)
    with fleet_client(server, identity, timeout_s) as client:
        policies = client.policies().policies
        infos = [policy_of(policies, number) for number in numbers]
        devices = client.devices().devices
    ours = Identity.load(identity)
    fetched = [
        fetch_published(server, ours, version=info.version, timeout_s=timeout_s) for info in infos
    ]
    graphs = {each.published.manifest.graph_digest: each.graph for each in fetched}
    one, other = (each.published for each in fetched)
    spec = _spec_of(devices, one.manifest.spec_fingerprint)
    item = difference_item(one, other, difference_of(one, other, graphs, spec), infos)
    if output in {Format.JSON, Format.YAML}:
        write_envelope("shoal.v1.PolicyDifference", [item], output)
        return
    for line in difference_lines(item):
        typer.echo(printable(line))


@policy_app.command("pin")
def pin(
    version: Version,
    *,
    identity: IdentityPath,
    reason: Reason = "",
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Keep a version, whatever retention says, until it is unpinned; `policy ls` shows it."""
    _pin(version, identity, reason, server, output, timeout_s, pinned=True, dry_run=dry_run)


@policy_app.command("unpin")
def unpin(
    version: Version,
    *,
    identity: IdentityPath,
    reason: Reason = "",
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """Let retention delete a version again, when the next one is published."""
    _pin(version, identity, reason, server, output, timeout_s, pinned=False, dry_run=dry_run)


@policy_app.command("snapshot")
def snapshot(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Of the file. (default: u and the updates)")
    ] = "",
    *,
    identity: IdentityPath,
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 60.0,
) -> None:
    """Have the learner write a checkpoint now, which it never deletes.

    It lies on the learner's machine. `init = PATH` in another learner's configuration, or
    `shoal learner run --init PATH`, begins training with it.
    """
    with _policy_client(server, identity, timeout_s) as client:
        taken = client.snapshot(name, dry_run=dry_run)
    if output in {Format.JSON, Format.YAML}:
        item: dict[str, Value] = {
            "name": taken.name,
            "path": taken.path,
            "bytes": taken.bytes,
            "updates": taken.updates,
            "policy_version": taken.policy_version,
            "env_id": taken.env_id,
            "dry_run": dry_run,
        }
        write_envelope("shoal.v1.Snapshot", [item], output)
        return
    did = "would write" if dry_run else "wrote"
    typer.echo(
        printable(
            f"{did} {taken.path} on the learner's machine: {size(taken.bytes)}, {taken.updates} "
            f"updates, policy v{taken.policy_version}, {taken.env_id}"
        )
    )


def _pin(
    version: str,
    identity: Path,
    reason: str,
    server: str,
    output: Format,
    timeout_s: float,
    *,
    pinned: bool,
    dry_run: bool,
) -> None:
    number = parse_policy_version(version) or 0
    with _policy_client(server, identity, timeout_s) as client:
        told = client.pin(number, pinned=pinned, reason=reason, dry_run=dry_run)
    if output in {Format.JSON, Format.YAML}:
        item: dict[str, Value] = {
            "version": told.version,
            "pinned": told.pinned,
            "changed": told.changed,
            "versions": list(told.versions),
            "max_versions": told.max_versions,
            "dry_run": dry_run,
        }
        write_envelope("shoal.v1.PolicyPin", [item], output)
        return
    if told.changed:
        said = f"v{told.version} {'would be' if dry_run else 'is'} {'' if pinned else 'un'}pinned"
    else:
        said = f"v{told.version} is {'pinned already' if pinned else 'not pinned'}"
    typer.echo(f"{said}; {len(told.versions)} of {told.max_versions} pins are in use")


def _spec_of(devices: Iterable[fleet_pb2.Device], fingerprint: bytes) -> EnvSpec | None:
    """The spaces that a policy is for, as a device said that acts in them."""
    from shoal.errors import WireError
    from shoal.spaces import EnvSpec

    for device in devices:
        try:
            spec = EnvSpec.from_pb(device.status.env_spec)
        except WireError:
            continue
        if spec.fingerprint == fingerprint:
            return spec
    return None


@contextmanager
def _policy_client(server: str, identity: Path, timeout_s: float) -> Iterator[PolicyClient]:
    from shoal.identity import Identity
    from shoalctl.policies.client import PolicyClient

    with PolicyClient(server, Identity.load(identity), timeout_s=timeout_s) as client:
        yield client
