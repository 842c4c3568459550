"""Puts a bundle into the spare slot, beside the agent that goes on running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots import account, transitions
from edge_agent.slots.bundle import (
    MANIFEST_NAME,
    Manifest,
    check_files,
    check_fits,
    read_manifest,
)
from edge_agent.slots.files import remove
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Name, Release
from edge_agent.slots.store import Store, locked

PIP_TIMEOUT_S: Final = 3600.0
"""Under emulation, or from a slow card, an installation takes many minutes."""
HEALTH_TIMEOUT_S: Final = 300.0
_SAID_CHARACTERS: Final = 2000


class InstallFailed(Exception):
    """A bundle can't be installed here; what ran before runs on."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation did.

    Attributes:
        slot: Where the bundle is.
        release: What it holds.
        changed: Whether it wasn't there before.
    """

    slot: Name
    release: Release
    changed: bool


class Installer:
    """Installs bundles.

    installer = Installer(layout, Store(layout))
    installer.install(Path("/var/lib/shoal/bundle")).slot
    """

    def __init__(
        self, layout: Layout, store: Store, *, tell: Callable[[str], object] = lambda _line: None
    ) -> None:
        """Does nothing yet.

        Args:
            layout: Where.
            store: The state.
            tell: Hears what is being done, line by line.
        """
        self._layout = layout
        self._store = store
        self._tell = tell

    def install(self, bundle: Path) -> Installed:
        """Installs a bundle into the spare slot; does nothing if it is in a slot already.

        Raises:
            BundleDamaged: It isn't whole, or not for this device.
            InstallFailed: It can't be installed, or what was installed doesn't work.
            Refused: The spare slot can't be had now.
            OSError: The disk is full or broken.
        """
        manifest = read_manifest(bundle)
        check_fits(manifest)
        check_files(bundle, manifest)
        self._layout.prefix.mkdir(parents=True, exist_ok=True)
        with locked(self._layout.install_lock, wait=False):
            there = self._there(manifest.release)
            if there is not None:
                return there
            return self._install(bundle, manifest)

    def _there(self, release: Release) -> Installed | None:
        state = self._store.read()
        for name in Name:
            slot = state.slot(name)
            whole = slot.content.runnable or name is state.current
            known = slot.release is not None and slot.release.digest == release.digest
            if whole and known and not self._layout.broken(name):
                return Installed(name, release, changed=False)
        return None

    def _install(self, bundle: Path, manifest: Manifest) -> Installed:
        release = manifest.release
        state = self._store.change(
            lambda state, now: transitions.start_install(state, release, now)
        )
        name = state.spare
        self._tell(f"installing bundle {release.bundle_version} into slot {name}")
        try:
            self._fill(bundle, manifest, name)
            self._check(name)
        except (InstallFailed, OSError, subprocess.SubprocessError) as error:
            reason = str(error)
            remove(self._layout.slot(name))  # first: there may be no room to write anything
            self._store.change(lambda state, now: transitions.fail_install(state, reason, now))
            if isinstance(error, InstallFailed):
                raise
            raise InstallFailed(
                f"bundle {release.bundle_version} can't be installed: {error}"
            ) from error
        os.sync()  # of all that pip wrote: an empty file after a power cut would be believed
        self._store.change(lambda state, now: transitions.finish_install(state, release, now))
        self._tell(f"slot {name} is installed, and healthy")
        return Installed(name, release, changed=True)

    def _fill(self, bundle: Path, manifest: Manifest, name: Name) -> None:
        slot, venv = self._layout.slot(name), self._layout.venv(name)
        remove(slot)
        slot.mkdir(parents=True)
        self._run([sys.executable, "-I", "-m", "venv", "--without-pip", str(venv)], "venv")
        wheels = [str(bundle / file.path) for file in manifest.files if _is_wheel(file.path)]
        if not wheels:
            raise InstallFailed("the bundle holds no wheels: make it again")
        with tempfile.TemporaryDirectory(prefix=".pip-", dir=self._layout.prefix) as scratch:
            pip = pip_command(self._layout.python(name), wheels, Path(scratch))
            packages = [wheel for wheel in wheels if not _is_pip(wheel)]  # pip isn't needed again
            self._tell(f"installing {len(packages)} wheels")
            self._run(
                [*pip, "install", "--no-index", "--no-deps", "--no-cache-dir", *packages],
                "pip install",
            )
        boot = bundle / "boot"
        if boot.is_dir():
            shutil.copytree(boot, slot / "boot", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(bundle / MANIFEST_NAME, slot / MANIFEST_NAME)

    def _check(self, name: Name) -> None:
        """Whether it starts, and finds its configuration's environment; without touching it."""
        shoal = str(self._layout.command(name))
        self._tell("checking its health")
        who = account.owner_of(self._layout.state_dir)
        self._run([shoal, "--version"], "shoal --version", who=who)
        if self._layout.config.exists():
            self._run(
                [
                    *(shoal, "agent", "check", "--offline", "--config", str(self._layout.config)),
                    *self._layout.told,
                ],
                "shoal agent check --offline",
                who=who,
            )

    def _run(self, command: list[str], what: str, *, who: account.Account | None = None) -> None:
        limit_s = HEALTH_TIMEOUT_S if who is not None else PIP_TIMEOUT_S
        done = account.run(command, timeout_s=limit_s, account=who, cwd=self._layout.prefix)
        if done.returncode != 0:
            said = " ".join(f"{done.stdout}\n{done.stderr}".split())[-_SAID_CHARACTERS:]
            raise InstallFailed(f"{what} ended with code {done.returncode}: {said}")


def pip_command(python: Path, wheels: list[str], scratch: Path) -> list[str]:
    """How to call pip for a virtual environment that has none.

    It is the bundle's own where there is one, else the one that the system's Python brings.

    Args:
        python: Of that environment.
        wheels: Of the bundle.
        scratch: A directory for what is needed meanwhile.

    Raises:
        InstallFailed: There is no pip.
    """
    own = [wheel for wheel in wheels if _is_pip(wheel)]
    if own:
        return [str(python), "-I", f"{own[0]}/pip"]
    beside = scratch / "pip"
    done = account.run(
        [sys.executable, "-I", "-m", "venv", str(beside)], timeout_s=PIP_TIMEOUT_S, cwd=scratch
    )
    if done.returncode != 0:
        raise InstallFailed(
            "there is no pip here, and none in the bundle: apt-get install python3-venv, or make "
            "the bundle again with a newer Shoal"
        )
    return [str(beside / "bin" / "python"), "-I", "-m", "pip", "--python", str(python)]


def _is_pip(wheel: str) -> bool:
    return Path(wheel).name.startswith("pip-")


def _is_wheel(path: str) -> bool:
    return path.startswith("wheels/") and path.endswith(".whl")
