"""Why a disk must not be written to. Every reason is said, never only the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoalctl.flash.image.disks import SWAP, Disk
from shoalctl.output import size

_SYSTEM_POINTS = frozenset({"/", "/boot", "/boot/efi", "/boot/firmware", "/efi", "/usr", "/var"})
_WRITABLE_KINDS = frozenset({"disk", "loop"})
_NOT_DISKS = ("zram", "ram", "md", "dm-", "sr", "fd", "nbd")


class Reason(StrEnum):
    """Why a disk is refused."""

    SYSTEM = "system"
    MOUNTED = "mounted"
    IN_USE = "in use"
    READ_ONLY = "read-only"
    TOO_SMALL = "too small"
    PARTITION = "a partition"
    NO_MEDIUM = "no medium"
    INTERNAL = "internal"
    NO_DISK = "no disk"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason, and what it rests on.

    Attributes:
        reason: The kind.
        detail: A clause for people: what, and what to do.
    """

    reason: Reason
    detail: str


def refusals(
    disk: Disk, *, required_bytes: int = 0, allow_internal: bool = False
) -> tuple[Refusal, ...]:
    """Why a disk must not be written to; empty when it may.

    Args:
        disk: The disk.
        required_bytes: What the image needs.
        allow_internal: Whether a disk that is built in was asked for.
    """
    found = [*_kind(disk), *_uses(disk)]
    if disk.read_only:
        found.append(Refusal(Reason.READ_ONLY, "it is read-only: is its lock switch on?"))
    if disk.size_bytes == 0:
        found.append(Refusal(Reason.NO_MEDIUM, "there is no card or medium in it"))
    elif disk.size_bytes < required_bytes:
        detail = f"it has {size(disk.size_bytes)}, and the image needs {size(required_bytes)}"
        found.append(Refusal(Reason.TOO_SMALL, detail))
    external = disk.removable or disk.bus == "usb" or disk.kind == "loop"
    if not found and not external and not allow_internal:
        detail = "it is built into this machine: --allow-internal if it is the right one"
        found.append(Refusal(Reason.INTERNAL, detail))
    return tuple(found)


def sentence(found: Sequence[Refusal]) -> str:
    """All reasons in a line."""
    return "; ".join(f"{refusal.reason} ({refusal.detail})" for refusal in found)


def _kind(disk: Disk) -> list[Refusal]:
    if disk.kind == "part":
        return [Refusal(Reason.PARTITION, "give the whole disk: an image brings its own table")]
    if disk.kind not in _WRITABLE_KINDS or disk.name.startswith(_NOT_DISKS):
        return [Refusal(Reason.NO_DISK, f"nothing boots from a {disk.kind or 'device'} like this")]
    if disk.name.startswith("mmcblk") and "boot" in disk.name:
        return [Refusal(Reason.PARTITION, "it is the firmware's own part of a card")]
    return []


def _uses(disk: Disk) -> list[Refusal]:
    mounted = [use for use in disk.uses if use.mounted and use.what != SWAP]
    system = [use for use in mounted if use.what in _SYSTEM_POINTS]
    others = [use for use in mounted if use not in system]
    busy = [use for use in disk.uses if not use.mounted or use.what == SWAP]
    found = []
    if system:
        points = ", ".join(use.what for use in system)
        found.append(Refusal(Reason.SYSTEM, f"this machine runs from it: {points}"))
    if others:
        devices = " ".join(dict.fromkeys(use.device for use in others))
        points = ", ".join(use.what for use in others)
        found.append(Refusal(Reason.MOUNTED, f"at {points}: umount {devices}"))
    if busy:
        detail = ", ".join(f"{use.device} is {use.what}" for use in busy)
        found.append(Refusal(Reason.IN_USE, detail))
    elif disk.members:
        detail = f"it holds {', '.join(disk.members)}: wipefs --all {disk.path} if that may go"
        found.append(Refusal(Reason.IN_USE, detail))
    return found
