"""The bundles of agents that devices can fetch from the learner: proven, found by version.

    bundles/<sha256 of the manifest>-<sha256 of the file>.tar

A bundle is here when its file was renamed into place: every byte of it was checked before.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from shoal.bundle import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SIGNATURE_BYTES,
    SIGNATURE_NAME,
    Manifest,
    verify,
)
from shoal.bundle_archive import MAX_ARCHIVE_BYTES, check_archive
from shoal.durable_file import TEMPORARY_SUFFIX, remove_leftovers, sync_directory
from shoal.errors import BundleRefused, ConfigError, RolloutError
from shoal.logs import get_logger
from shoal.v1 import device_pb2

PART_BYTES: Final = 256 * 1024
"""Of a part that devices are sent."""
KEPT: Final = 32
"""Bundles that a learner keeps; of more, the oldest go that no rollout in progress is about."""
SPARE_BYTES: Final = 64 * 1024 * 1024
"""Left free for what else writes to that disk, policies first of all."""
_NAME: Final = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.tar", re.ASCII)
_log = get_logger("bundles")


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """A bundle that is here.

    Attributes:
        version: Of the bundle.
        arch: Of the machines that it is for, as `uname -m` says.
        python: Of the interpreter that it is for: 3.11.
        digest: sha256 of its manifest.
        bundle_bytes: Size of the file.
        bundle_digest: sha256 of the file.
    """

    version: str
    arch: str
    python: str
    digest: bytes
    bundle_bytes: int
    bundle_digest: bytes

    @classmethod
    def of(cls, manifest: Manifest, bundle_bytes: int, bundle_digest: bytes) -> StoredBundle:
        """What is remembered of one."""
        return cls(
            manifest.version,
            manifest.arch,
            manifest.python,
            bytes.fromhex(manifest.digest),
            bundle_bytes,
            bundle_digest,
        )

    def fits(self, status: device_pb2.Status) -> bool:
        """Whether a device can run it."""
        python = ".".join(status.python_version.split(".")[:2])
        return status.hardware.machine == self.arch and python == self.python


class Incoming:
    """A bundle on its way.

    Attributes:
        path: Where it lies meanwhile.
        size: Bytes so far.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._sha256 = hashlib.sha256()

    def expect(self, total_bytes: int) -> None:
        """Checks that the disk has room for what is still to come. For a thread.

        Args:
            total_bytes: Of the whole bundle, as whoever sends it says.

        Raises:
            RolloutError: It has not.
            OSError: The disk refuses.
        """
        free = shutil.disk_usage(self.path.parent).free
        needed = total_bytes - self.size + SPARE_BYTES
        if free < needed:
            raise RolloutError(
                f"a bundle of {total_bytes} bytes does not fit: {free} bytes are free in "
                f"{self.path.parent}, and it needs {needed} with what must stay free: free some"
            )

    def write(self, piece: bytes) -> None:
        """Takes the next bytes. For a thread.

        Raises:
            BundleRefused: They are too many.
            OSError: The disk refuses.
        """
        self.size += len(piece)
        if self.size > MAX_ARCHIVE_BYTES:
            raise BundleRefused("limit", f"over {MAX_ARCHIVE_BYTES} bytes")
        self._sha256.update(piece)
        self._file.write(piece)

    def sync(self) -> None:
        """Has all of it survive a power cut.

        Raises:
            OSError: The disk refuses.
        """
        self._file.flush()
        os.fsync(self._file.fileno())

    @property
    def digest(self) -> bytes:
        """Of the bytes so far."""
        return self._sha256.digest()


class BundleStore:
    """A directory of bundles. Thread-safe.

    bundles = BundleStore(state.bundles, fleet="reef", public_key=key)
    with bundles.receiving() as incoming:
        incoming.write(piece)
        stored = bundles.keep(incoming)      # in a thread
    bundles.for_device("0.2.0", status)
    """

    def __init__(
        self,
        directory: Path,
        *,
        fleet: str,
        public_key: bytes,
        in_use: Callable[[], Collection[str]] = frozenset,
        keep: int = KEPT,
    ) -> None:
        """Reads what is there; what is damaged is left aside, with a line in the log.

        Args:
            directory: Made when absent.
            fleet: Whose bundles are taken.
            public_key: Who signs them, 32 bytes.
            in_use: Says of which versions none may be deleted.
            keep: Bundles that stay; of more, the oldest go.

        Raises:
            RolloutError: The directory can't be made or read.
        """
        self._directory = directory
        self._fleet = fleet
        self._public_key = public_key
        self._in_use = in_use
        self._kept = keep
        self._receiving = threading.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            remove_leftovers(directory)
            self._bundles = tuple(self._load())
        except OSError as error:
            raise self._failure(error) from error

    @property
    def all(self) -> Sequence[StoredBundle]:
        """Every one, the newest first."""
        return self._bundles

    def require(self, version: str) -> None:
        """Checks that a version is here.

        Raises:
            ConfigError: It is not.
        """
        if not any(each.version == version for each in self._bundles):
            here = ", ".join(sorted({each.version for each in self._bundles})) or "none"
            raise ConfigError(
                f"there is no bundle of version {version!r}, there is {here}: add it by `shoal "
                "rollout bundles add FILE`, or start with --bundle FILE"
            )

    def for_device(self, version: str, status: device_pb2.Status) -> StoredBundle | None:
        """The bundle of a version that a device can run; None: there is none."""
        return next((b for b in self._bundles if b.version == version and b.fits(status)), None)

    def fits(self, version: str) -> Callable[[device_pb2.Status], bool]:
        """Says of a device whether it can run a version."""
        return lambda status: self.for_device(version, status) is not None

    def find(self, digest: bytes) -> StoredBundle | None:
        """A bundle by the digest of its manifest."""
        return next((each for each in self._bundles if each.digest == digest), None)

    @contextmanager
    def receiving(self) -> Iterator[Incoming]:
        """Takes the bytes of a bundle within the block, to be kept by `keep`; one at a time.

        Raises:
            ConfigError: Another is on its way.
            RolloutError: The disk refuses.
        """
        if not self._receiving.acquire(blocking=False):
            raise ConfigError("another bundle is being added: try again when it is here")
        path = self._directory / f"incoming{TEMPORARY_SUFFIX}"
        try:
            with path.open("wb") as file:
                yield Incoming(path, file)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            path.unlink(missing_ok=True)
            self._receiving.release()

    def keep(self, incoming: Incoming) -> StoredBundle:
        """Checks every byte of what was received, and makes it durable. For a thread.

        Raises:
            BundleRefused: It is no bundle, or not this fleet's.
            ConfigError: Another bundle of that version is here for the same machines.
            RolloutError: The disk refuses.
        """
        try:
            incoming.sync()
            manifest = check_archive(incoming.path, self._public_key)
            stored = StoredBundle.of(manifest, incoming.size, incoming.digest)
            self._check(manifest, stored)
            if self.find(stored.digest) is None:
                incoming.path.replace(self._path(stored))
                sync_directory(self._directory)
                self._bundles = (stored, *self._bundles)
                self._prune()
        except OSError as error:
            raise self._failure(error) from error
        _log.info("bundle_added", version=stored.version, arch=stored.arch, bytes=incoming.size)
        return stored

    def read(self, bundle: StoredBundle, offset: int) -> Iterator[bytes]:
        """The bytes of a bundle from an offset on, in pieces. For a thread.

        Raises:
            RolloutError: It can't be read.
        """
        try:
            with self._path(bundle).open("rb") as file:
                file.seek(offset)
                while piece := file.read(PART_BYTES):
                    yield piece
        except OSError as error:
            raise self._failure(error) from error

    def _check(self, manifest: Manifest, stored: StoredBundle) -> None:
        if manifest.fleet != self._fleet:
            raise BundleRefused(
                "fleet", f"a bundle of fleet {manifest.fleet!r}; this learner is of {self._fleet!r}"
            )
        for each in self._bundles:
            same = (each.version, each.arch, each.python)
            if each.digest != stored.digest and same == (
                stored.version,
                stored.arch,
                stored.python,
            ):
                raise ConfigError(
                    f"another bundle of version {stored.version} for {stored.arch} is here: make "
                    "this one under a version of its own"
                )

    def _prune(self) -> None:
        in_use = self._in_use()
        kept = [
            each for n, each in enumerate(self._bundles) if n < self._kept or each.version in in_use
        ]
        for gone in set(self._bundles) - set(kept):
            self._path(gone).unlink(missing_ok=True)
        self._bundles = tuple(kept)

    def _load(self) -> Iterator[StoredBundle]:
        paths = [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)]
        for path in sorted(paths, key=lambda each: -each.stat().st_mtime_ns):
            match = _NAME.fullmatch(path.name)
            try:
                manifest = _manifest_of(path, self._public_key)
            except (BundleRefused, tarfile.TarError) as error:
                _log.error("bundle_skipped", path=str(path), problem=str(error))
                continue
            if match is not None and manifest.digest == match[1]:
                yield StoredBundle.of(manifest, path.stat().st_size, bytes.fromhex(match[2]))

    def _path(self, bundle: StoredBundle) -> Path:
        return self._directory / f"{bundle.digest.hex()}-{bundle.bundle_digest.hex()}.tar"

    def _failure(self, error: OSError) -> RolloutError:
        return RolloutError(
            f"bundles {self._directory}: {error.strerror or error}: check the disk's free space "
            "and permissions"
        )


def _manifest_of(path: Path, public_key: bytes) -> Manifest:
    """The manifest alone: every byte was checked when it was added."""
    found: list[bytes] = []
    with tarfile.open(path, "r:") as archive:
        for name, limit in ((MANIFEST_NAME, MAX_MANIFEST_BYTES), (SIGNATURE_NAME, SIGNATURE_BYTES)):
            entry = archive.next()
            file = None if entry is None else archive.extractfile(entry)
            if entry is None or file is None or entry.name != name or entry.size > limit:
                raise BundleRefused("malformed", f"{path}: no {name} where it should be")
            found.append(file.read(limit))
    return verify(found[0], found[1], public_key)
