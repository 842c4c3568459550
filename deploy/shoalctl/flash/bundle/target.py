"""What a bundle is for: a processor, a Python, and the oldest C library among the devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.tags import Tag, compatible_tags, cpython_tags

from shoal.bundle import ARCHES
from shoal.errors import ConfigError

DEFAULT_GLIBC = "2.28"
"""Of Debian 10 and newer, and what most wheels are built for."""
_OLDEST_GLIBC = {"aarch64": 17, "x86_64": 5}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_NAMES = {"arm64": "aarch64", "amd64": "x86_64", "x86-64": "x86_64"}
_PYTHON = re.compile(r"3\.([0-9]{1,2})")
_GLIBC = re.compile(r"2\.([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of device.

    Attributes:
        arch: `aarch64` or `x86_64`.
        python: `3.11`.
        glibc: The oldest that the devices have, `2.28`.
    """

    arch: str
    python: str
    glibc: str = DEFAULT_GLIBC

    @classmethod
    def parse(cls, arch: str, python: str, glibc: str = DEFAULT_GLIBC) -> Target:
        """Checks what was typed.

        Raises:
            ConfigError: One of them is not known.
        """
        known = _NAMES.get(arch, arch)
        if known not in ARCHES:
            raise ConfigError(
                f"--arch {arch!r}: give {' or '.join(ARCHES)}, as `uname -m` says on the device"
            )
        if not _PYTHON.fullmatch(python):
            raise ConfigError(
                f"--python {python!r}: give major and minor version, such as 3.11, as "
                "`python3 --version` says on the device"
            )
        found = _GLIBC.fullmatch(glibc)
        if not found or int(found[1]) < _OLDEST_GLIBC[known]:
            raise ConfigError(
                f"--glibc {glibc!r}: give 2.{_OLDEST_GLIBC[known]} or newer, as "
                "`ldd --version` says on the device"
            )
        return cls(known, python, glibc)

    @property
    def short(self) -> str:
        """As in the names of wheels: `cp311`."""
        return f"cp{self.python.replace('.', '')}"

    @property
    def description(self) -> str:
        """For people."""
        return f"{self.arch}, Python {self.python}, glibc {self.glibc}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that run there, the best first."""
        newest = int(self.glibc.partition(".")[2])
        found = []
        for minor in range(newest, _OLDEST_GLIBC[self.arch] - 1, -1):
            found.append(f"manylinux_2_{minor}_{self.arch}")
            if minor in _LEGACY:
                found.append(f"{_LEGACY[minor]}_{self.arch}")
        return (*found, f"linux_{self.arch}")

    @property
    def tags(self) -> frozenset[Tag]:
        """The tags of wheels that run there."""
        version = (3, int(self.python.partition(".")[2]))
        platforms = list(self.platforms)
        return frozenset(
            (
                *cpython_tags(version, platforms=platforms),
                *compatible_tags(version, self.short, platforms),
            )
        )

    def markers(self, extra: str = "") -> Mapping[str, str]:
        """What environment markers (PEP 508) are there."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
            "extra": extra,
        }


def glibc_of(tags: frozenset[Tag]) -> str | None:
    """The oldest C library that a wheel with these tags runs with; None if it needs none."""
    minors = [minor for tag in tags if (minor := _minor(tag.platform)) is not None]
    return f"2.{min(minors)}" if minors else None


def _minor(platform: str) -> int | None:
    found = re.match(r"manylinux_2_([0-9]+)_", platform)
    if found:
        return int(found[1])
    return next((minor for minor, name in _LEGACY.items() if platform.startswith(f"{name}_")), None)
