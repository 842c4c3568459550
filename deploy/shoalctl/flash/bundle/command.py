"""`shoal flash bundle`: everything that a device is installed from, in one signed file."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from shoal.bundle import Manifest
from shoal.errors import ConfigError
from shoalctl.flash.bundle.assembly import Plan, created_at, make_manifest, write
from shoalctl.flash.bundle.device_config import DEFAULT_ENV, device_config
from shoalctl.flash.bundle.fleet_trust import FleetTrust
from shoalctl.flash.bundle.own_wheel import CHECKOUT_PARTS, find_checkout, pack_installed
from shoalctl.flash.bundle.parts import Parts
from shoalctl.flash.bundle.pip import Say
from shoalctl.flash.bundle.source_tree import build_wheel, tree_digest
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.bundle.wheel import Wheel
from shoalctl.flash.bundle.wheelhouse import Question, Wheelhouse

INSTALLED_WITH = "pip"
"""Goes along, so that a device needs nothing but Python: Debian's has neither pip nor ensurepip."""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What was typed after `shoal flash bundle`."""

    fleet: Path
    target: Target
    packages: tuple[str, ...] = ()
    out: Path | None = None
    env: str | None = None
    version: str | None = None
    config: Path | None = None
    policy_key: Path | None = None
    wheels: Path | None = None
    constraints: tuple[Path, ...] = ()
    offline: bool = False
    refresh: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What was made, or would be.

    Attributes:
        out: Where it is.
        manifest: What is in it.
        packages: The distributions in it, as `name version`.
        installed_bytes: About what it takes on a device.
        written: Whether it is there; not after a dry run.
    """

    out: Path
    manifest: Manifest
    packages: tuple[str, ...] = field(default=())
    installed_bytes: int = 0
    written: bool = True


def run_bundle(options: BundleOptions, say: Say, *, parts: Parts | None = None) -> BundleReport:
    """Makes a bundle.

    Args:
        options: What was typed.
        say: Told what happens, line by line.
        parts: Launcher, units and installer; None: this Shoal's own.

    Raises:
        ConfigError: An argument is wrong, or a wheel is not to be had.
        IdentityError: The fleet's directory lacks something.
        ConnectionFailed: The package index can't be reached.
    """
    trust = FleetTrust.load(options.fleet, policy_key=options.policy_key, warn=say)
    config = device_config(trust, options.config, options.env)
    if options.env is None and options.config is None:
        say(f"devices will step {DEFAULT_ENV}: name another environment with --env")
    parts = parts or Parts.load()
    house = Wheelhouse(options.wheels or default_wheelhouse(), say)
    own = own_wheel(house, say)
    own.check_fits(options.target)
    given, requirements = _packages(options, house, say)
    question = Question(
        options.target,
        (own, *given),
        (INSTALLED_WITH, *requirements),
        _constraints(options.constraints),
    )
    wheels = house.answer(question, offline=options.offline, refresh=options.refresh)
    check_environment(config, wheels)
    plan = Plan(
        options.target,
        trust,
        str(own.version),
        wheels,
        config,
        parts,
        created_at(wheels, os.environ),
    )
    contents = plan.contents()
    manifest = make_manifest(plan, contents, options.version)
    name = f"shoal-bundle-{manifest.version}-{manifest.arch}-{options.target.short}.tar"
    out = options.out or Path(name)
    if out.is_dir():
        out /= name
    if not options.dry_run:
        write(out, plan, manifest, contents)
    packages = tuple(f"{wheel.name} {wheel.version}" for wheel in wheels)
    return BundleReport(out, manifest, packages, plan.unpacked_bytes, not options.dry_run)


def check_environment(config: bytes, wheels: Sequence[Wheel]) -> None:
    """Whether a wheel holds the module that a configuration names its environment by.

    Raises:
        ConfigError: None does: devices would not find it.
    """
    env_id = str(tomllib.loads(config.decode())["env"]["id"])
    module, colon, _ = env_id.partition(":")
    if colon and not any(wheel.holds(module) for wheel in wheels):
        raise ConfigError(
            f'no wheel of the bundle holds the module {module} of the environment "{env_id}": add '
            "the package it is in, --with ./DIRECTORY"
        )


def own_wheel(house: Wheelhouse, say: Say) -> Wheel:
    """Shoal's own wheel.

    Raises:
        ConfigError: It can't be made of what runs here.
        ConnectionFailed: What it is built with can't be fetched.
    """
    checkout = find_checkout()
    if checkout is None:
        with house.scratch() as scratch:
            digest = Wheel.read(pack_installed(scratch)).sha256
        return house.built(digest, pack_installed)
    return house.built(
        tree_digest(checkout, CHECKOUT_PARTS),
        functools.partial(build_wheel, checkout, say=say, only=CHECKOUT_PARTS, backend="hatchling"),
    )


def default_wheelhouse() -> Path:
    """Where wheels are kept if nobody says where."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "shoal" / "wheels"


def _packages(
    options: BundleOptions, house: Wheelhouse, say: Say
) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """Wheels of the user's, and what he wants from the package index."""
    wheels: list[Wheel] = []
    requirements: list[str] = []
    for text in options.packages:
        path = Path(text)
        if path.is_dir():
            wheel = house.built(
                tree_digest(path), functools.partial(build_wheel, path.resolve(), say=say)
            )
        elif path.suffix == ".whl":
            wheel = Wheel.read(path)
        else:
            requirements.append(_requirement(text))
            continue
        wheel.check_fits(options.target)
        wheels.append(wheel)
    return tuple(wheels), tuple(requirements)


def _requirement(text: str) -> str:
    try:
        if "/" in text:
            raise ConfigError(f"--with {text}: no such directory or wheel")
        return str(Requirement(text))
    except InvalidRequirement as error:
        raise ConfigError(
            f"--with {text!r}: give a directory, a wheel, or a requirement such as 'my-env>=1.2'"
        ) from error


def _constraints(paths: tuple[Path, ...]) -> tuple[str, ...]:
    lines: list[str] = []
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--constraint {path}: {error}") from error
        lines += [line.strip() for line in text.splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#"))
