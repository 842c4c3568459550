"""A wheel as it lies on the disk: what it is, what it needs, and where it runs."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from shoal.errors import ConfigError
from shoalctl.flash.bundle.target import Target

MAX_METADATA_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel.

    Attributes:
        path: Where it lies.
        name: Of the distribution, normalized.
        version: Of the distribution.
        tags: What it runs with.
        requires: What it needs, markers not yet looked at.
        requires_python: Which Pythons it runs with.
        sha256: Its digest, hexadecimal.
        newest: When the newest file in it was made.
    """

    path: Path
    name: str
    version: Version
    tags: frozenset[Tag]
    requires: tuple[Requirement, ...]
    requires_python: SpecifierSet
    sha256: str
    newest: datetime

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Reads a wheel's name and metadata.

        Raises:
            ConfigError: It is no wheel, or can't be read.
        """
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            with zipfile.ZipFile(path) as archive:
                headers = BytesHeaderParser().parsebytes(_metadata(archive))
                dates = [entry.date_time for entry in archive.infolist()]
            requires = tuple(Requirement(line) for line in headers.get_all("Requires-Dist", []))
            python = SpecifierSet(headers.get("Requires-Python", ""))
            newest = max(datetime(*date, tzinfo=UTC) for date in dates)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        except (
            InvalidWheelFilename,
            InvalidVersion,
            InvalidRequirement,
            InvalidSpecifier,
            zipfile.BadZipFile,
            ValueError,
        ) as error:
            raise ConfigError(f"{path}: not a wheel ({error})") from error
        return cls(path, name, version, tags, requires, python, sha256, newest)

    def holds(self, module: str) -> bool:
        """Whether importing `module`, dotted, finds something of it.

        Raises:
            ConfigError: It can't be read any more.
        """
        path = module.replace(".", "/")
        places = re.compile(
            rf"(?:[^/]+\.data/(?:pure|plat)lib/)?{re.escape(path)}(?:\.py|\.[^/]+\.so|/.+)"
        )
        try:
            with zipfile.ZipFile(self.path) as archive:
                return any(places.fullmatch(name) for name in archive.namelist())
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def needs(self, target: Target, extras: frozenset[str]) -> tuple[Requirement, ...]:
        """What it needs on a target."""
        wanted = ("", *sorted(extras))
        return tuple(
            requirement
            for requirement in self.requires
            if requirement.marker is None
            or any(requirement.marker.evaluate(dict(target.markers(extra))) for extra in wanted)
        )

    def check_fits(self, target: Target) -> None:
        """Checks that it runs on a target.

        Raises:
            ConfigError: It does not.
        """
        if not self.tags & target.tags:
            raise ConfigError(
                f"{self.path.name} does not run on {target.description}: build it there, or in a "
                "container of that architecture, and give that wheel with --with"
            )
        if not self.requires_python.contains(target.python):
            raise ConfigError(
                f"{self.name} {self.version} needs Python {self.requires_python}: "
                f"it does not run with --python {target.python}"
            )


def distribution_name(name: str) -> str:
    """A distribution's name in its normal form."""
    return str(canonicalize_name(name))


def _metadata(archive: zipfile.ZipFile) -> bytes:
    for entry in archive.infolist():
        folder, _, file = entry.filename.partition("/")
        if folder.endswith(".dist-info") and file == "METADATA":
            if entry.file_size > MAX_METADATA_BYTES:
                raise ValueError(f"METADATA of {entry.file_size} bytes")
            return archive.read(entry)
    raise ValueError("without METADATA")
