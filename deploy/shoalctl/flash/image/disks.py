"""The disks of this machine, as `lsblk` tells of them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, FlashFailed

SWAP = "[SWAP]"
_TIMEOUT_S = 30
_STACKED = frozenset({"lvm", "crypt", "mpath", "dm"})


@dataclass(frozen=True, slots=True)
class Use:
    """Something that a disk, or a part of it, is used for.

    Attributes:
        device: Which device, e.g. `/dev/sda1`.
        what: A mount point, `[SWAP]`, or what lies on top, such as `lvm vg-root`.
        mounted: Whether it is mounted or swapped to.
    """

    device: str
    what: str
    mounted: bool


@dataclass(frozen=True, slots=True)
class Disk:
    """A block device.

    Attributes:
        path: E.g. `/dev/sdb`.
        kind: `disk`, `part`, `loop`, `rom`, ... as `lsblk` calls it.
        size_bytes: 0 for a reader without a card.
        number: The kernel's `major:minor`.
        model: What its maker calls it; may be empty.
        serial: May be empty.
        bus: `usb`, `mmc`, `nvme`, `sata`, ...; may be empty.
        read_only: Whether it refuses to be written, e.g. by a lock switch.
        removable: Whether it, or its medium, is meant to be taken out.
        uses: What it and its parts are used for.
        members: File systems on it that belong to something larger, e.g. `LVM2_member`.
    """

    path: Path
    kind: str
    size_bytes: int
    number: str
    model: str = ""
    serial: str = ""
    bus: str = ""
    read_only: bool = False
    removable: bool = False
    uses: tuple[Use, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name without the directory, e.g. `sdb`."""
        return self.path.name


def list_disks() -> tuple[Disk, ...]:
    """The disks of this machine, partitions left out.

    Raises:
        ConfigError: `lsblk` is missing.
        FlashFailed: `lsblk` failed.
    """
    return parse_disks(_lsblk(), _card_types())


def find_disk(path: Path) -> Disk | None:
    """The block device at a path, which may be a partition; None when `lsblk` knows of none.

    Raises:
        ConfigError: `lsblk` is missing.
        FlashFailed: `lsblk` failed.
    """
    real = path.resolve()
    devices, types = _walk(_devices(_lsblk())), _card_types()
    found = (_disk(device, types) for device in devices if device.get("path") == str(real))
    return next(found, None)


def parse_disks(document: str, card_types: Mapping[str, str]) -> tuple[Disk, ...]:
    """The disks in what `lsblk --json --bytes --output-all` wrote.

    Args:
        document: What it wrote.
        card_types: What sysfs says of each `mmcblk`: `SD` for a card, `MMC` for what is soldered.

    Raises:
        FlashFailed: It is not understood.
    """
    return tuple(_disk(device, card_types) for device in _devices(document))


def _card_types() -> dict[str, str]:
    types = {}
    for path in Path("/sys/block").glob("mmcblk*/device/type"):
        with contextlib.suppress(OSError):
            types[path.parts[3]] = path.read_text().strip()
    return types


def _lsblk() -> str:
    program = shutil.which("lsblk")
    if program is None:
        raise ConfigError("disks are listed with lsblk (util-linux), which is not installed here")
    try:
        finished = subprocess.run(
            [program, "--json", "--bytes", "--output-all"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FlashFailed(f"lsblk can't list the disks: {error}") from error
    return finished.stdout


def _devices(document: str) -> Sequence[Mapping[str, Any]]:
    try:
        devices = list(json.loads(document)["blockdevices"])
    except (ValueError, KeyError, TypeError) as error:
        raise FlashFailed(f"lsblk said something that isn't understood: {error}") from error
    return [device for device in devices if isinstance(device, dict)]


def _walk(devices: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for device in devices:
        yield device
        yield from _walk(device.get("children") or ())


def _disk(device: Mapping[str, Any], card_types: Mapping[str, str]) -> Disk:
    family = list(_walk([device]))
    bus = _text(device, "tran")
    name = _text(device, "name")
    return Disk(
        path=Path(_text(device, "path") or f"/dev/{name}"),
        kind=_text(device, "type"),
        size_bytes=int(device.get("size") or 0),
        number=_text(device, "maj:min"),
        model=" ".join(
            word for word in (_text(device, "vendor"), _text(device, "model")) if word
        ).strip(),
        serial=_text(device, "serial"),
        bus=bus or ("mmc" if name.startswith("mmcblk") else ""),
        read_only=_flag(device, "ro"),
        removable=(_flag(device, "rm") or _flag(device, "hotplug") or card_types.get(name) == "SD"),
        uses=tuple(use for member in family for use in _uses(member)),
        members=tuple(
            dict.fromkeys(
                kind for member in family if (kind := _text(member, "fstype")).endswith("_member")
            )
        ),
    )


def _uses(device: Mapping[str, Any]) -> Iterator[Use]:
    path, kind = _text(device, "path"), _text(device, "type")
    if kind in _STACKED or kind.startswith(("raid", "md", "linear")):
        yield Use(path, f"{kind} {_text(device, 'name')}", mounted=False)
    points = device.get("mountpoints")
    if points is None:  # util-linux before 2.37
        points = [device.get("mountpoint")]
    yield from (Use(path, str(point), mounted=True) for point in points if point)


def _text(device: Mapping[str, Any], key: str) -> str:
    value = device.get(key)
    return "" if value is None else str(value).strip()


def _flag(device: Mapping[str, Any], key: str) -> bool:
    return device.get(key) in {True, "1"}
