"""What emulated devices are made of: an aarch64 root, and a card's image that boots. For Debian.

`python tests/device/roots.py aarch64|card` builds one into the cache and says where it is.
Needs root, and debootstrap, qemu-user-static, mtools, dosfstools and e2fsprogs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device.binfmt import aarch64_programs
from device.root_cache import RootCache, usual_directory
from flash_images import MIB, make_fat, mbr

SUITE = "bookworm"  # its Python is the 3.11 that bundles are made for
BOOT_AT, BOOT_BYTES, ROOT_BYTES = MIB, 192 * MIB, 2048 * MIB
ROOT_AT = BOOT_AT + BOOT_BYTES
ROOT_PARTITION = "/dev/vda2"
KERNEL, INITRD, IMAGE = "vmlinuz", "initrd.img", "card.img"
EMULATED_CPU = "cortex-a72"  # as in a Raspberry Pi 4

_TIMEOUT_S = 1500
_AARCH64_PACKAGES = ("python3", "python3-venv", "openssh-server", "ca-certificates")
_CARD_PACKAGES = (
    *("linux-image-cloud-amd64", "systemd-sysv", "cloud-init", "python3-cffi-backend"),
    *("openssh-server", "netplan.io", "udev", "dbus", "zstd", "sudo", "ca-certificates"),
    *("python3", "python3-venv"),
)
_CARD_FILES = {
    "etc/cloud/cloud.cfg.d/99_card.cfg": """\
datasource_list: [NoCloud, None]
datasource: {NoCloud: {fs_label: bootfs}}
ssh_genkeytypes: [ed25519]
locale: false
apt: {preserve_sources_list: true}
""",
    "etc/fstab": "/dev/vda2 / ext4 defaults 0 1\nLABEL=bootfs /boot/firmware vfat defaults 0 2\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/hostname": "card\n",
    # The card of a device that nobody flashed says that it is to be seeded.
    "boot/firmware/.keep": "",
}
_SEED_PLACES = {"meta-data": "instance-id: card-image\n", "user-data": "#cloud-config\n"}
# What a device needs no minute for: the network may come when it comes, and nothing is updated.
_MASKED = (
    *("systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer"),
    *("dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer"),
)


@dataclass(frozen=True, slots=True)
class Card:
    """An image, and what a machine without a boot loader starts it with."""

    image: Path
    kernel: Path
    initrd: Path


def aarch64_root(cache: RootCache) -> Path:
    """A Debian of aarch64 with Python and sshd, never started; copy it before it is."""

    def build(place: Path) -> None:
        with aarch64_programs():
            _debootstrap("arm64", _AARCH64_PACKAGES, place / "root")

    recipe = repr((SUITE, _AARCH64_PACKAGES))
    return cache.get("aarch64", recipe, build) / "root"


def card_image(cache: RootCache) -> Card:
    """A Debian of x86-64 with cloud-init as a card's image, FAT and ext4; never booted."""
    recipe = repr(
        (SUITE, _CARD_PACKAGES, _CARD_FILES, _SEED_PLACES, _MASKED, BOOT_BYTES, ROOT_BYTES)
    )
    place = cache.get("card", recipe, _build_card)
    return Card(place / IMAGE, place / KERNEL, place / INITRD)


def _build_card(place: Path) -> None:
    root = place / "root"
    _debootstrap("amd64", _CARD_PACKAGES, root)
    for name, text in _CARD_FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for unit in _MASKED:
        (root / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    _run("chroot", str(root), "systemctl", "enable", "systemd-networkd.service")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    shutil.rmtree(root / "var/cache/apt/archives")
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    for name, found in ((KERNEL, "vmlinuz-*"), (INITRD, "initrd.img-*")):
        (newest,) = (root / "boot").glob(found)
        shutil.copyfile(newest, place / name)
        newest.unlink()
    image = place / IMAGE
    with image.open("wb") as file:
        file.truncate(ROOT_AT + ROOT_BYTES)
        file.write(mbr([(0x0C, BOOT_AT, BOOT_BYTES), (0x83, ROOT_AT, ROOT_BYTES)]))
    make_fat(image, BOOT_AT, BOOT_BYTES, _SEED_PLACES, fat=32)
    _run(
        *("mkfs.ext4", "-q", "-F", "-L", "rootfs", "-d", str(root), "-E", f"offset={ROOT_AT}"),
        *(str(image), f"{ROOT_BYTES // 1024}k"),
    )
    shutil.rmtree(root)


def _debootstrap(arch: str, packages: Sequence[str], root: Path) -> None:
    """Installs a Debian in a mount namespace of its own: nothing stays mounted, come what may."""
    _run(
        *("unshare", "--mount", "--propagation", "private"),
        *("debootstrap", f"--arch={arch}", "--variant=minbase"),
        *(f"--include={','.join(packages)}", SUITE, str(root)),
    )
    shutil.rmtree(root / "var/lib/apt/lists")
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)


def _run(*command: str) -> None:
    # Nothing of this machine's settings goes into a root.
    environment = {
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "LC_ALL": "C.UTF-8",
        "QEMU_CPU": EMULATED_CPU,
        "DEBIAN_FRONTEND": "noninteractive",
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr}"
    )


if __name__ == "__main__":
    kept = RootCache(usual_directory())
    made = aarch64_root(kept) if sys.argv[1:] == ["aarch64"] else card_image(kept).image
    sys.stdout.write(f"{made}\n")
