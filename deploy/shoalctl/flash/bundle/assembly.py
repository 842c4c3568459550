"""From parts to a bundle: digests, manifest, signature, one file."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal.bundle import BundleFile, Manifest, sign
from shoal.bundle_archive import pack
from shoal.durable_file import sync_directory
from shoal.errors import ConfigError
from shoalctl.flash.bundle import device_config
from shoalctl.flash.bundle.fleet_trust import FleetTrust
from shoalctl.flash.bundle.parts import Parts
from shoalctl.flash.bundle.target import Target, glibc_of
from shoalctl.flash.bundle.wheel import Wheel

SOURCE_DATE_VARIABLE = "SOURCE_DATE_EPOCH"
_OVERHEAD = 1.25
"""What an installation needs over the wheels' contents: bytecode, and blocks not filled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that goes into a bundle.

    Attributes:
        target: For whom.
        trust: Whose.
        shoal_version: Of Shoal in it.
        wheels: All of them.
        config: `agent.toml`.
        parts: The rest.
        created: When the newest of it was made.
    """

    target: Target
    trust: FleetTrust
    shoal_version: str
    wheels: Sequence[Wheel]
    config: bytes
    parts: Parts
    created: datetime

    @property
    def unpacked_bytes(self) -> int:
        """What the wheels take when they are installed, about."""
        total = 0
        for wheel in self.wheels:
            with zipfile.ZipFile(wheel.path) as archive:
                total += sum(entry.file_size for entry in archive.infolist())
        return int(total * _OVERHEAD)

    @property
    def min_glibc(self) -> str:
        """The oldest C library that all wheels run with."""
        found = [
            glibc for wheel in self.wheels if (glibc := glibc_of(wheel.tags & self.target.tags))
        ]
        return max(found, key=_minor, default="2.17")

    def contents(self) -> dict[str, bytes | Path]:
        """The files by path."""
        target = Target(self.target.arch, self.target.python, self.min_glibc)
        return {
            **{f"wheels/{wheel.path.name}": wheel.path for wheel in self.wheels},
            **self.parts.files(target, self.unpacked_bytes),
            "config/agent.toml": self.config,
            "config/policy.pub": device_config.public_key(self.trust),
            "config/seed.json": device_config.seed(self.trust),
        }


def created_at(wheels: Sequence[Wheel], environment: Mapping[str, str]) -> datetime:
    """When a bundle was made, for all it matters: the same wheels say the same.

    Raises:
        ConfigError: `SOURCE_DATE_EPOCH` is no number of seconds.
    """
    given = environment.get(SOURCE_DATE_VARIABLE)
    if given is None:
        return max(wheel.newest for wheel in wheels)
    try:
        return datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"${SOURCE_DATE_VARIABLE} = {given!r}: give seconds since 1970"
        ) from error


def make_manifest(
    plan: Plan, contents: Mapping[str, bytes | Path], version: str | None
) -> Manifest:
    """The manifest of a bundle.

    Args:
        plan: What is in it.
        contents: The same as files.
        version: Of the bundle; None: Shoal's, and a digest of the contents.
    """
    files = tuple(_file(path, contents[path]) for path in sorted(contents))
    if version is None:
        told = "".join(f"{file.path} {file.sha256}\n" for file in files)
        version = f"{plan.shoal_version}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    return Manifest(
        fleet=plan.trust.fleet,
        version=version,
        shoal_version=plan.shoal_version,
        arch=plan.target.arch,
        python=plan.target.python,
        created=plan.created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        min_glibc=plan.min_glibc,
        ca_fingerprint=plan.trust.fingerprint,
        enrollment=device_config.address(plan.trust.enrollment),
        files=files,
    )


def write(out: Path, plan: Plan, manifest: Manifest, contents: Mapping[str, bytes | Path]) -> None:
    """Writes a bundle; it appears whole or not at all.

    Raises:
        ConfigError: It can't be written.
    """
    signature = sign(manifest, plan.trust.signing_key)
    temporary: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            pack(file, manifest, signature, contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(out)
        sync_directory(out.parent)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"can't write {out}: {error.strerror or error}") from error
        raise


def _file(path: str, content: bytes | Path) -> BundleFile:
    if isinstance(content, bytes):
        return BundleFile(path, len(content), hashlib.sha256(content).hexdigest())
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return BundleFile(path, content.stat().st_size, digest)


def _minor(glibc: str) -> int:
    return int(glibc.partition(".")[2])
