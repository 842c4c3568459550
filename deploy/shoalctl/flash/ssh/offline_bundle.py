"""The bundle file on the operator's machine: checked whole before any host is asked anything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.bundle import Manifest
from shoal.bundle_archive import check_archive
from shoal.errors import ConfigError
from shoalctl.flash.ssh.host import Host


@dataclass(frozen=True, slots=True)
class OfflineBundle:
    """A bundle file that is what its manifest says.

    Attributes:
        path: Where it is.
        sha256: Of the file.
        size_bytes: Of the file.
        manifest: What is in it.
    """

    path: Path
    sha256: str
    size_bytes: int
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, public_key: bytes | None) -> OfflineBundle:
        """Reads a bundle file and checks every byte of it.

        Args:
            path: The file.
            public_key: Whose signature it must have, 32 bytes; None: none is asked for.

        Raises:
            ConfigError: It can't be read.
            BundleRefused: It is no bundle, damaged, or not signed by that key.
        """
        try:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size_bytes = file.tell()
        except OSError as error:
            raise ConfigError(
                f"--bundle {path}: {error.strerror}; make one with `shoal flash bundle`"
            ) from error
        return cls(path, sha256, size_bytes, check_archive(path, public_key))


class BundleShelf:
    """The bundles of one command: each file is read once, however many hosts get it."""

    def __init__(self, given: Iterable[Path], public_key: bytes | None) -> None:
        """Reads the bundles that were typed; an architecture may have one.

        Args:
            given: The files.
            public_key: Whose signature each must have, 32 bytes; None: none is asked for.

        Raises:
            ConfigError: One can't be read, or two are for one architecture.
            BundleRefused: One is no bundle, or damaged.
        """
        self._public_key = public_key
        self._opened: dict[Path, OfflineBundle] = {}
        self._given: dict[str, OfflineBundle] = {}
        for path in given:
            bundle = self._open(path)
            arch = bundle.manifest.arch
            if arch in self._given:
                raise ConfigError(
                    f"--bundle: {self._given[arch].path} and {path} are both for {arch}: "
                    "give one of them"
                )
            self._given[arch] = bundle

    def bundles_of(self, host: Host) -> dict[str, OfflineBundle]:
        """What a host may be given, by architecture. What was typed counts, else its inventory.

        Raises:
            ConfigError: There is none, a file can't be read, or is for another architecture.
            BundleRefused: A file is no bundle, or damaged.
        """
        if self._given:
            return dict(self._given)
        if not host.bundles:
            raise ConfigError(
                f"{host.name}: no bundle: give --bundle FILE, or [bundles] in the inventory"
            )
        found: dict[str, OfflineBundle] = {}
        for arch, path in host.bundles.items():
            bundle = self._open(path)
            if bundle.manifest.arch != arch:
                raise ConfigError(
                    f"{host.name}: {path} is for {bundle.manifest.arch}, and the inventory has "
                    f"it under {arch}"
                )
            found[arch] = bundle
        return found

    def _open(self, path: Path) -> OfflineBundle:
        key = path.absolute()
        if key not in self._opened:
            self._opened[key] = OfflineBundle.open(path, self._public_key)
        return self._opened[key]
