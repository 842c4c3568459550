"""The launcher itself: a copy of this package, replaced once the slot that brought it acted."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from edge_agent.slots import account
from edge_agent.slots.files import link_durably, remove, sync_directory, write_durably
from edge_agent.slots.layout import Layout

CHECK_TIMEOUT_S: Final = 120.0


class LauncherBroken(Exception):
    """A launcher doesn't start; the one before stays."""

    exit_code = 1


def boot_files(directory: Path = Path(__file__).parent) -> dict[str, bytes]:
    """The files of a launcher by their names: what a bundle holds under `boot/`."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.py"))}


def put_boot(layout: Layout, source: Path) -> bool:
    """Makes a directory's launcher the one in use; False if it is already.

    Raises:
        LauncherBroken: It doesn't start.
        OSError: It can't be written.
    """
    files = boot_files(source)
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    target = layout.boots / digest.hexdigest()[:16]
    link = f"{layout.boots.name}/{target.name}"
    if layout.boot.is_symlink() and os.readlink(layout.boot) == link:  # noqa: PTH115 the text, not a path
        return False
    fresh = target.with_suffix(".new")
    remove(fresh)
    fresh.mkdir(parents=True)
    for name, content in files.items():
        write_durably(fresh / name, content)
    check_starts(fresh)
    remove(target)
    fresh.rename(target)
    sync_directory(layout.boots)
    link_durably(layout.boot, link)
    for other in layout.boots.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return True


def check_starts(directory: Path) -> None:
    """Starts a launcher that does nothing.

    Raises:
        LauncherBroken: It doesn't start.
    """
    command = [sys.executable, "-IB", str(directory), "--help"]
    try:
        done = account.run(command, timeout_s=CHECK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise LauncherBroken(f"the launcher in {directory} doesn't start: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        raise LauncherBroken(f"the launcher in {directory} doesn't start: {said}")


def write_wrapper(layout: Layout) -> None:
    """Writes the command `shoal-slots` of this installation.

    Raises:
        OSError: It can't be written.
    """
    layout.wrapper.parent.mkdir(parents=True, exist_ok=True)
    paths = f"--prefix {layout.prefix} --state-dir {layout.state_dir} --config {layout.config}"
    script = f'#!/bin/sh\nexec {sys.executable} -IB {layout.boot} {paths} "$@"\n'
    write_durably(layout.wrapper, script.encode(), mode=0o755)
