"""The bundles of agents that devices can fetch from the learner, found by version and machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ConfigError
from shoal.v1 import device_pb2


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

    def fits(self, status: device_pb2.Status) -> bool:
        """Whether a device can run it."""
        python = ".".join(status.python_version.split(".")[:2])
        return status.hardware.machine == self.arch and python == self.python


class BundleStore:
    """A directory of bundles.

    bundles = BundleStore(state.bundles)
    bundles.for_device("0.2.0", status)
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bundles: tuple[StoredBundle, ...] = ()

    @property
    def all(self) -> Sequence[StoredBundle]:
        """Every one."""
        return self._bundles

    def require(self, version: str) -> None:
        """Checks that a version is here.

        Raises:
            ConfigError: It is not.
        """
        if not any(each.version == version for each in self._bundles):
            here = ", ".join(sorted({each.version for each in self._bundles})) or "none"
            raise ConfigError(
                f"there is no bundle of version {version!r}, only {here}: add it by `shoal rollout "
                "bundles add FILE`, or start with --bundle FILE"
            )

    def for_device(self, version: str, status: device_pb2.Status) -> StoredBundle | None:
        """The bundle of a version that a device can run; None: there is none."""
        return next((b for b in self._bundles if b.version == version and b.fits(status)), None)

    def fits(self, version: str) -> Callable[[device_pb2.Status], bool]:
        """Says of a device whether it can run a version."""
        return lambda status: self.for_device(version, status) is not None
