"""What every bundle holds beside wheels and configuration: launcher, units, installer."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.bundle import INSTALLER_NAME
from shoal.errors import ConfigError
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.edge_files import edge_directory, edge_text

LAUNCHER_PACKAGE = "edge_agent.slots"
_UNIT_SUFFIXES = (".service", ".path", ".timer", ".socket")


@dataclass(frozen=True, slots=True)
class Parts:
    """Files by name.

    Attributes:
        boot: The launcher, for the system's own Python.
        units: Of systemd.
        installer: `install.sh`, its target not filled in yet.
    """

    boot: Mapping[str, bytes]
    units: Mapping[str, bytes]
    installer: str

    @classmethod
    def load(cls, edge: Path | None = None) -> Parts:
        """Reads what lies beside this code.

        Args:
            edge: The directory with units and installer; None: where an installation has it.

        Raises:
            ConfigError: A part is missing.
        """
        edge = edge or edge_directory()
        installer = edge_text(INSTALLER_NAME, edge)
        units = {
            path.name: path.read_bytes()
            for path in sorted((edge / "systemd").iterdir())
            if path.suffix in _UNIT_SUFFIXES
        }
        return cls(_launcher(), units, installer)

    def files(self, target: Target, needed_bytes: int) -> dict[str, bytes]:
        """The files of a bundle.

        Args:
            target: For whom.
            needed_bytes: How much room an installation needs.
        """
        filled = self.installer
        for name, value in {
            "@ARCH@": target.arch,
            "@PYTHON@": target.python,
            "@GLIBC@": target.glibc,
            "@NEEDED_MB@": str(-(-needed_bytes // 1_000_000)),
        }.items():
            filled = filled.replace(name, value)
        return {
            **{f"boot/{name}": content for name, content in self.boot.items()},
            **{f"units/{name}": content for name, content in self.units.items()},
            INSTALLER_NAME: filled.encode(),
        }


def _launcher() -> dict[str, bytes]:
    found = importlib.util.find_spec(LAUNCHER_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"{LAUNCHER_PACKAGE} is missing: install Shoal again")
    directory = Path(next(iter(found.submodule_search_locations)))
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.py"))}
