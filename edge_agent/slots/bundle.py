"""What is installed from: a directory with a manifest and the files that it names."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots.files import open_plain, read_plain
from edge_agent.slots.state import Release

MANIFEST_NAME, SIGNATURE_NAME = "manifest.json", "manifest.sig"
SCHEMA: Final = 1
MAX_MANIFEST_BYTES: Final = 256 << 10
MAX_SIGNATURE_BYTES: Final = 64
MAX_FILES: Final = 512
MAX_BUNDLE_BYTES: Final = 1 << 30
MAX_DEPTH: Final = 6
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,63}")


class BundleDamaged(Exception):
    """It isn't a whole bundle, or not one for this device; nothing of it was used."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a bundle: its path in it, its size in bytes, its sha256 in hexadecimal."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        release: What is in it.
        arch: The machine that it is for; empty: any.
        python: The minor version of Python that it is for; empty: any.
        files: All but the manifest and its signature.
    """

    release: Release
    arch: str
    python: str
    files: tuple[BundleFile, ...]


def read_manifest(directory: Path) -> Manifest:
    """Reads the manifest of a bundle, or of what was installed from one.

    Raises:
        BundleDamaged: It is missing, or none.
    """
    path = directory / MANIFEST_NAME
    try:
        data = read_plain(path, MAX_MANIFEST_BYTES)
        table = json.loads(data)
        if table["schema"] != SCHEMA:
            raise BundleDamaged(
                f"{path}: schema {str(table['schema'])[:40]}, this launcher reads {SCHEMA}: "
                "flash this device over SSH with a newer Shoal"
            )
        files = tuple(_read_file(each) for each in table["files"])
        release = Release(
            hashlib.sha256(data).hexdigest(),
            _matching(_VERSION, table["version"]),
            _matching(_VERSION, table["shoal_version"]),
        )
        manifest = Manifest(
            release, str(table.get("arch", "")), str(table.get("python", "")), files
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleDamaged(f"{path}: {type(error).__name__}: {str(error)[:200]}") from error
    if len(files) > MAX_FILES or sum(file.size for file in files) > MAX_BUNDLE_BYTES:
        raise BundleDamaged(f"{path}: over {MAX_FILES} files, or over {MAX_BUNDLE_BYTES} bytes")
    return manifest


def check_fits(manifest: Manifest) -> None:
    """Checks that a bundle is for this machine and this Python.

    Raises:
        BundleDamaged: It isn't.
    """
    if manifest.arch and manifest.arch != platform.machine():
        raise BundleDamaged(
            f"the bundle is for {manifest.arch}, this device is {platform.machine()}: make one "
            f"with --arch {platform.machine()}"
        )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if manifest.python and manifest.python != here:
        raise BundleDamaged(
            f"the bundle is for Python {manifest.python}, this device has {here}: make one with "
            f"--python {here}"
        )


def check_files(directory: Path, manifest: Manifest) -> None:
    """Checks that every file of a bundle is what its manifest says.

    Raises:
        BundleDamaged: One is missing, a link, or another.
    """
    for file in manifest.files:
        path = directory / file.path
        try:
            digest = hashlib.sha256()
            with os.fdopen(open_plain(path), "rb") as content:
                if os.fstat(content.fileno()).st_size != file.size:
                    raise BundleDamaged(f"{path}: not of {file.size} bytes: copy the bundle again")
                while piece := content.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise BundleDamaged(f"{path}: {error.strerror or error}") from error
        if digest.hexdigest() != file.sha256:
            raise BundleDamaged(f"{path} isn't what the manifest says: copy the bundle again")


def _read_file(value: dict[str, object]) -> BundleFile:
    path, size = str(value["path"]), value["size"]
    segments = path.split("/")
    if len(segments) > MAX_DEPTH or not all(_SEGMENT.fullmatch(each) for each in segments):
        raise ValueError(f"{path[:80]!r} is not a path within a bundle")
    if type(size) is not int or not 0 <= size <= MAX_BUNDLE_BYTES:
        raise ValueError(f"{path}: {str(size)[:40]} is no size")
    return BundleFile(path, size, _matching(_DIGEST, value["sha256"]))


def _matching(form: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} has not the form that it should have")
    return value
