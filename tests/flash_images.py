"""Images of disks for the tests of `shoal flash`, small and made on the spot."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import uuid
import zlib
from pathlib import Path

import pytest

SECTOR = 512
MIB = 1 << 20
BOOT_AT, BOOT_BYTES = MIB, 3 * MIB
ROOT_AT, ROOT_BYTES = 4 * MIB, 4 * MIB
IMAGE_BYTES = 9 * MIB

TRIXIE_ISSUE = "Raspberry Pi reference 2025-10-01\nGenerated using pi-gen, stage2\n"
BOOKWORM_ISSUE = "Raspberry Pi reference 2024-11-19\nGenerated using pi-gen, stage2\n"
CMDLINE = "console=tty1 root=PARTUUID=1234-02 rootwait\n"
TRIXIE = {
    "issue.txt": TRIXIE_ISSUE,
    "cmdline.txt": CMDLINE,
    "config.txt": "arm_64bit=1\n",
    "meta-data": "instance_id: rpios-image\n",
    "user-data": "#cloud-config\n",
    "network-config": "network: {version: 2}\n",
}
BOOKWORM = {
    "issue.txt": BOOKWORM_ISSUE,
    "cmdline.txt": CMDLINE.strip() + " init=/usr/lib/raspberrypi-sys-mods/firstboot\n",
    "config.txt": "arm_64bit=1\n",
}

needs_mtools = pytest.mark.skipif(
    shutil.which("mcopy") is None
    or shutil.which("mkfs.vfat", path=os.defpath + ":/usr/sbin:/sbin") is None,
    reason="!!! mtools or dosfstools is not installed: tests of flashing are SKIPPED "
    "(apt-get install mtools dosfstools)",
)


def make_image(
    path: Path,
    files: dict[str, str] | None = None,
    *,
    table: str = "mbr",
    label: str = "bootfs",
    fat: int = 16,
    boot_type: int = 0x0C,
) -> Path:
    """An image of a FAT boot partition with `files`, and of one with noise."""
    boot_bytes = BOOT_BYTES if fat == 16 else 40 * MIB
    root_at = BOOT_AT + boot_bytes
    total = root_at + ROOT_BYTES + MIB
    with path.open("wb") as image:
        image.truncate(total)
        image.seek(root_at)
        image.write(random.Random(5).randbytes(ROOT_BYTES))
    if files is not None:
        make_fat(path, BOOT_AT, boot_bytes, files, label=label, fat=fat)
    partitions = [(boot_type, BOOT_AT, boot_bytes), (0x83, root_at, ROOT_BYTES)]
    with path.open("r+b") as image:
        if table == "mbr":
            image.write(mbr(partitions))
        else:
            head, tail = gpt(partitions, total)
            image.write(head)
            image.seek(total - len(tail))
            image.write(tail)
    return path


def make_fat(
    image: Path, at: int, size: int, files: dict[str, str], *, label: str = "bootfs", fat: int = 16
) -> None:
    """A FAT file system in a part of a file."""
    environment = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "MTOOLS_SKIP_CHECK": "1"}
    volume = image.with_suffix(".fat")
    with volume.open("wb") as file:
        file.truncate(size)
    command = ["mkfs.vfat", "-F", str(fat), "-s", "1", "-n", label, str(volume)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    for name, text in files.items():
        command = ["mcopy", "-i", str(volume), "-", f"::/{name}"]
        subprocess.run(command, input=text.encode(), check=True, env=environment)
    with image.open("r+b") as file:
        file.seek(at)
        file.write(volume.read_bytes())
    volume.unlink()


def mbr(partitions: list[tuple[int, int, int]]) -> bytes:
    """A partition table of entries (type, start, size in bytes)."""
    entries = b"".join(
        struct.pack("<B3xB3xII", 0, kind, start // SECTOR, size // SECTOR)
        for kind, start, size in partitions
    )
    return bytes(440) + struct.pack("<IH", 0x1234, 0) + entries.ljust(64, b"\0") + b"\x55\xaa"


def gpt(partitions: list[tuple[int, int, int]], total: int) -> tuple[bytes, bytes]:
    """Head and tail of a disk with a GUID partition table."""
    esp = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").bytes_le
    linux = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le
    entries = b"".join(
        struct.pack(
            "<16s16sQQQ72s",
            linux if kind == 0x83 else esp,
            uuid.UUID(int=number + 1).bytes_le,
            start // SECTOR,
            (start + size) // SECTOR - 1,
            0,
            b"",
        )
        for number, (kind, start, size) in enumerate(partitions)
    ).ljust(128 * 128, b"\0")
    last = total // SECTOR - 1

    def header(own: int, other: int, at: int) -> bytes:
        fields = (own, other, 34, last - 33, uuid.UUID(int=9).bytes_le, at, 128, 128)
        raw = struct.pack("<8s4sIIIQQQQ16sQIII", b"EFI PART", b"\0\0\1\0", 92, 0, 0, *fields,
                          zlib.crc32(entries))  # fmt: skip
        return raw[:16] + struct.pack("<I", zlib.crc32(raw)) + raw[20:]

    protective = mbr([(0xEE, SECTOR, (last) * SECTOR)])
    head = protective + header(1, last, 2).ljust(SECTOR, b"\0") + entries
    tail = entries + header(last, 1, last - 32).ljust(SECTOR, b"\0")
    return head, tail


def boot_text(image: Path, name: str, at: int = BOOT_AT) -> str:
    """A file of the boot partition of an image or card."""
    command = ["mtype", "-i", f"{image}@@{at}", f"::/{name}"]
    environment = {"PATH": os.environ["PATH"], "MTOOLS_SKIP_CHECK": "1"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
