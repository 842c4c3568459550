"""The kernel's list of foreign programs, with those of aarch64 in it for a while."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from device.root_cache import alone

DIRECTORY = Path("/proc/sys/fs/binfmt_misc")
NAME = "qemu-aarch64"


@contextmanager
def aarch64_programs() -> Iterator[None]:
    """Lets this kernel run programs of aarch64, by qemu-user; leaves it as it was.

    What is registered by Debian's `qemu-user-static` needs no file inside a root: the kernel keeps
    the interpreter open. One at a time: the list is the whole machine's.
    """
    with alone(Path(tempfile.gettempdir(), "shoal-binfmt.lock")):
        yield from _enabled()


def _enabled() -> Iterator[None]:
    mounted = not (DIRECTORY / "register").exists()
    if mounted:
        _run("mount", "-t", "binfmt_misc", "binfmt_misc", str(DIRECTORY))
    enabled = not (DIRECTORY / NAME).exists()
    try:
        if enabled:
            _run("update-binfmts", "--enable", NAME)
        yield
    finally:
        if enabled and (DIRECTORY / NAME).exists():
            _run("update-binfmts", "--disable", NAME)
        if mounted:
            _run("umount", str(DIRECTORY))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
