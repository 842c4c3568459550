"""Offline bundles for emulated devices, made as an operator makes them."""

from __future__ import annotations

from pathlib import Path

from device.fleet_site import FleetSite, said
from device.reef_env import ENV_ID, reef_env_wheel


def make_bundle(site: FleetSite, directory: Path, *, arch: str, version: str) -> Path:
    """A bundle that steps a version of the environment package.

    Args:
        site: The fleet it is for.
        directory: Where it goes.
        arch: `aarch64` or `x86_64`.
        version: Of the environment package, and of the bundle.
    """
    wheel = reef_env_wheel(directory, version)
    answer = said(
        *("flash", "bundle", "--arch", arch, "--python", "3.11", "--fleet", site.directory),
        *("--with", wheel, "--env", ENV_ID, "--version", version, "--out", directory),
        *("-o", "json"),
        timeout_s=600.0,
    )
    return Path(answer.items[0]["file"])
