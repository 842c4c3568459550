"""`shoal fleet init`: a fleet in one directory, its keys, identities and configurations."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoalctl.pki.pki import FleetPki

BROKER_PORT, SERVER_PORT, ENROLLMENT_PORT = 8883, 50051, 8444
_ANY = "0.0.0.0"  # noqa: S104 - devices come from elsewhere; each needs a certificate of the fleet
_LOOPBACK = "127.0.0.1"
Port = Annotated[int, typer.Option(min=1, max=65_535, help="Where it listens.")]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a fleet is made of.

    Attributes:
        fleet: Its name.
        hosts: Names and addresses that devices reach it by, the one they are told first; none: only
            this machine does.
        broker_port: Where the broker listens.
        server_port: Where the learner's gRPC server does.
        enrollment_port: Where enrolment does.
    """

    fleet: str
    hosts: Sequence[str] = ()
    broker_port: int = BROKER_PORT
    server_port: int = SERVER_PORT
    enrollment_port: int = ENROLLMENT_PORT

    def __post_init__(self) -> None:
        """Three services share one host.

        Raises:
            ConfigError: Two have one port.
        """
        ports = (self.broker_port, self.server_port, self.enrollment_port)
        if len(set(ports)) < len(ports):
            raise ConfigError(
                f"broker, server and enrolment listen on {', '.join(map(str, ports))}: give each a "
                "port of its own"
            )


def make_fleet(directory: Path, plan: FleetPlan, *, offline: Path | None = None) -> FleetPki:
    """Makes a fleet's directory; it appears whole or not at all.

    Args:
        directory: Must not exist, or be empty.
        plan: What to make.
        offline: Where the keys of root and policies go instead; must not hold a fleet.

    Raises:
        ConfigError: A directory is in use or can't be written, or a name is not valid.
    """
    from shoalctl.pki.delegates import DELEGATE_FILE, DelegationOffice
    from shoalctl.pki.fleet_keys import POLICY_KEY_FILE
    from shoalctl.pki.pki import FleetPki, Role

    directory = directory.absolute()
    if offline is not None:
        offline = offline.absolute()
        if offline == directory or directory in offline.parents or offline in directory.parents:
            raise ConfigError(
                f"--offline-root {offline}: choose a directory apart from {directory}"
            )
        _require_empty(offline)
    _require_empty(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise ConfigError(f"can't write {directory}: {error.strerror}") from error
    try:
        pki = FleetPki.create(staging, plan.fleet, offline=offline)
        delegate = None
        if offline is not None:
            key = offline / POLICY_KEY_FILE
            office = DelegationOffice(key, plan.fleet, pki.policy_public_key)
            delegate = office.delegate(present=staging / DELEGATE_FILE)
        for role in (Role.LEARNER, Role.BROKER, Role.SERVER, Role.OPERATOR):
            pki.issue(role, role, sans=plan.hosts if role.serves else (), delegate=delegate)
        (staging / "revoked.crl").write_bytes(pki.revocation_list({}))
        for name, tables in _configurations(plan).items():
            _write_toml(staging / name, tables)
        staging.rename(directory)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if offline is not None:
            shutil.rmtree(offline, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigError(f"can't write {directory}: {error}") from error
        raise
    return FleetPki.load(directory)


def _configurations(plan: FleetPlan) -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    """The files by name; paths are relative to them, so that the directory may be moved."""
    host = plan.hosts[0] if plan.hosts else _LOOPBACK
    listen = _ANY if plan.hosts else _LOOPBACK
    shown = f"[{host}]" if ":" in host else host
    return {
        "broker.toml": {
            "": {
                "fleet": plan.fleet,
                "identity": "identities/broker",
                "state_dir": "broker",
                "devices_file": "devices",
                "revocation_list": "revoked.crl",
                "host": listen,
                "port": plan.broker_port,
            }
        },
        "learner.toml": {
            "": {
                "fleet": plan.fleet,
                "identity": "identities/learner",
                "state_dir": "learner",
            },
            "broker": {"host": _LOOPBACK, "port": plan.broker_port},
            "server": {
                "host": listen,
                "port": plan.server_port,
                "revocation_list": "revoked.crl",
            },
        },
        "enrollment.toml": {
            "": {
                "fleet": plan.fleet,
                "directory": ".",
                "identity": "identities/server",
                "devices_file": "devices",
                "revocation_list": "revoked.crl",
                "broker_config": "broker.toml",
                "host": listen,
                "port": plan.enrollment_port,
            },
            "addresses": {
                "broker": f"{shown}:{plan.broker_port}",
                "parameter_server": f"{shown}:{plan.server_port}",
                "enrollment": f"{shown}:{plan.enrollment_port}",
            },
        },
    }


def _write_toml(path: Path, tables: Mapping[str, Mapping[str, object]]) -> None:
    lines: list[str] = []
    for table, values in tables.items():
        if table:
            lines.append(f"\n[{table}]")
        # Strings and whole numbers are written the same way in JSON and in TOML.
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in values.items())
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _delegation_ends(pki: FleetPki) -> str:
    from shoalctl.pki.delegates import DELEGATE_FILE, read_delegation

    path = pki.directory / "identities" / "learner" / DELEGATE_FILE
    return read_delegation(path, pki.policy_public_key).ends


def _require_empty(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not empty: nothing there is overwritten")


def init(
    fleet: Annotated[str, typer.Argument(metavar="NAME", help="1-63 of a-z, 0-9 and '-'.")],
    *,
    directory: Annotated[
        Path, typer.Option("--dir", "-d", envvar="SHOAL_FLEET_DIR", help="Where to make it.")
    ] = Path("fleet"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address that devices reach it by; may be repeated. "
            "(default: this machine alone)"
        ),
    ] = None,
    offline_root: Annotated[
        Path | None,
        typer.Option(help="Where the keys of the root CA and of policies go, to be carried away."),
    ] = None,
    broker_port: Port = BROKER_PORT,
    server_port: Port = SERVER_PORT,
    enrollment_port: Port = ENROLLMENT_PORT,
) -> None:
    """Make a fleet: CA, policy signing key, identities and configuration, in one directory.

    Whoever reads that directory can add devices and sign policies: keep it off the devices.
    With --offline-root he can sign policies for a while, and is stopped by the next delegate.
    """
    plan = FleetPlan(fleet, tuple(host or ()), broker_port, server_port, enrollment_port)
    pki = make_fleet(directory, plan, offline=offline_root)
    typer.echo(pki.directory)
    typer.echo(f"CA fingerprint: {pki.fingerprint}", err=True)
    if offline_root is not None:
        key = offline_root / "policy.key"
        typer.echo(
            f"ca.key and policy.key are in {offline_root}: carry it away, and keep two copies. "
            f"In {directory} remain the intermediate, and a delegate that the learner signs "
            f"policies with until {_delegation_ends(pki)}. Bring {offline_root} back for the next "
            f"one (`shoal pki delegate --fleet {directory} --policy-key {key}`), which revokes one "
            f"that was stolen, too, and for `shoal flash bundle --policy-key {key}`.",
            err=True,
        )
    typer.echo(
        "Next, each in a terminal of its own: "
        f"shoal broker run --config {directory}/broker.toml; "
        f"shoal learner run --config {directory}/learner.toml; "
        f"shoal enroll serve --fleet {directory}",
        err=True,
    )
