"""Which way of seeding an image supports, told from the files of its boot partition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

CIDATA = "cidata"
"""The label of a file system that cloud-init's NoCloud looks for on any machine."""

_EFI = "efi"
_BOOKWORM = date(2023, 10, 10)
_FIRST_BOOT_INIT = "raspberrypi-sys-mods/firstboot"
_ISSUE_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


class SeedFormat(StrEnum):
    """How a device is told its settings."""

    CLOUD_INIT = "cloud-init"
    FIRST_RUN = "first-run"


class Family(StrEnum):
    """Whose image it is, where that matters to what is written."""

    RASPBERRY_PI_OS = "raspberry-pi-os"
    UBUNTU = "ubuntu"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class BootFiles:
    """What is seen of a boot partition.

    Attributes:
        label: The name of its file system.
        names: The files and directories of its root, in lower case.
        issue: The content of `issue.txt`, which Raspberry Pi OS carries.
        cmdline: The content of `cmdline.txt`, the command line of a Raspberry Pi's kernel.
        loaders: The files of `EFI/BOOT`, in lower case.
    """

    label: str
    names: frozenset[str]
    issue: str = ""
    cmdline: str = ""
    loaders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Support:
    """What can be done with an image.

    Attributes:
        format: How it is seeded; None if it can't be.
        family: Whose image it is.
        reason: Why, as a clause.
        needs_label: Whether cloud-init finds the seed only if its partition is labelled CIDATA.
    """

    format: SeedFormat | None
    family: Family
    reason: str
    needs_label: bool = False


def support_of(boot: BootFiles) -> Support:
    """Decides how an image is seeded.

    cloud-init images for boards come with `meta-data` or `user-data` in their boot partition:
    Raspberry Pi OS from trixie on, Ubuntu for the Raspberry Pi, and Debian images whose NoCloud
    seed lies there. Elsewhere cloud-init looks for the label CIDATA. Raspberry Pi OS bookworm runs
    a script that its kernel command line names.
    """
    family = _family(boot)
    if {"user-data", "meta-data"} & boot.names:
        return Support(SeedFormat.CLOUD_INIT, family, "its boot partition has cloud-init's seed")
    if boot.label.lower() == CIDATA:
        return Support(SeedFormat.CLOUD_INIT, family, "it has a partition labelled CIDATA")
    if family is Family.RASPBERRY_PI_OS:
        return _older_raspberry_pi_os(boot)
    if _EFI in boot.names:
        reason = (
            "it has an EFI partition only, which doesn't tell whether cloud-init is in it: if it "
            "is (Debian's generic and genericcloud images have it), add --seed-as cloud-init"
        )
    else:
        reason = (
            "its boot partition has neither cloud-init's `meta-data` nor the files of "
            "Raspberry Pi OS"
        )
    return Support(None, family, reason)


def asked_for(boot: BootFiles, seed_format: SeedFormat) -> Support:
    """How an image is seeded when someone who knows it says so.

    An EFI partition is then labelled CIDATA: nothing else goes by its label, and cloud-init does.
    """
    needs_label = (
        seed_format is SeedFormat.CLOUD_INIT
        and _EFI in boot.names
        and support_of(boot).format is None
    )
    return Support(seed_format, _family(boot), "it was asked for", needs_label)


def _family(boot: BootFiles) -> Family:
    if "raspberry pi" in boot.issue.lower() or "pi-gen" in boot.issue.lower():
        return Family.RASPBERRY_PI_OS
    return Family.UBUNTU if boot.label == "system-boot" else Family.GENERIC


def _older_raspberry_pi_os(boot: BootFiles) -> Support:
    family = Family.RASPBERRY_PI_OS
    made = _ISSUE_DATE.search(boot.issue)
    try:
        day = date(*(int(part) for part in made.groups())) if made else None
    except ValueError:
        day = None
    if day is None:
        return Support(None, family, "its issue.txt doesn't say which Raspberry Pi OS it is")
    if day < _BOOKWORM:
        reason = f"it is Raspberry Pi OS of {day}, older than bookworm: use a newer image"
        return Support(None, family, reason)
    if _FIRST_BOOT_INIT not in boot.cmdline:
        reason = (
            f"it is Raspberry Pi OS of {day} without cloud-init's seed, and it is not a bookworm "
            "that was never booted: use the image as it is published"
        )
        return Support(None, family, reason)
    return Support(SeedFormat.FIRST_RUN, family, f"it is Raspberry Pi OS bookworm of {day}")
