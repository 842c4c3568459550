"""The facts of a host that is fit for a bundle."""

from __future__ import annotations

from shoalctl.flash.ssh.facts import Disk, Facts, Privilege, Python

NOW_S = 1_800_000_000.0
GIB = 1 << 30
PYTHON = Python("python3", "3.11.2", "CPython", 64, venv=True, ensurepip=True)
FIT = Facts(
    privilege=Privilege.ROOT,
    user="root",
    staging="/root/.cache/shoal/flash",
    hostname="pi-1",
    system="Debian GNU/Linux 12 (bookworm)",
    machine="aarch64",
    clock_s=NOW_S,
    pythons=(PYTHON,),
    glibc="2.36",
    libc="glibc 2.36",
    memory_total_bytes=GIB,
    memory_available_bytes=GIB // 2,
    disks={
        name: Disk("/dev/mmcblk0p2", 8 * GIB, writable=True)
        for name in ("prefix", "state", "staging")
    },
    systemd=True,
    unit=False,
    enrolled=False,
    token=False,
    staged={},
    unpacked=frozenset(),
    lock="",
    slots="",
)
