"""The first installation on a device: user, directories, configuration, launcher, units, a slot."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots import account, configuration, transitions
from edge_agent.slots.boot import put_boot, write_wrapper
from edge_agent.slots.bundle import check_files, check_fits, read_manifest
from edge_agent.slots.files import link_durably, read_plain, write_durably
from edge_agent.slots.install import Installed, Installer
from edge_agent.slots.layout import AGENT_UNIT, PREFIX, UNITS, UPDATE_PATH_UNIT, Layout
from edge_agent.slots.store import Store

TOKEN_VARIABLE: Final = "SHOAL_ENROLMENT_TOKEN_FILE"  # noqa: S105 a variable's name
MAX_TOKEN_BYTES: Final = 4096
COMMANDS: Final = Path("/usr/local/bin")
SYSTEMD_RUNS: Final = Path("/run/systemd/system")


@dataclass(frozen=True, slots=True)
class Options:
    """How to set up.

    Attributes:
        replace_config: Overwrite a configuration that is there and differs.
        user: Whether the agent gets a user of its own; only root can, under the usual prefix.
        units: Whether systemd is to run it; only root can, under the usual prefix.
        reason: Why, for the history.
        device: The name it enrols with; empty: its host name, or the one that it was given before.
    """

    replace_config: bool = False
    user: bool = True
    units: bool = True
    reason: str = "set up"
    device: str = ""


class Setup:
    """Sets a device up; doing it again changes only what differs.

    Setup(layout, Store(layout), Options()).run(Path("bundle"))
    """

    def __init__(
        self,
        layout: Layout,
        store: Store,
        options: Options,
        *,
        tell: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Does nothing yet.

        Args:
            layout: Where.
            store: The state.
            options: How.
            tell: Hears what is being done.
        """
        self._layout = layout
        self._store = store
        self._options = options
        self._tell = tell

    def run(self, bundle: Path) -> Installed:
        """Installs a bundle on a device that may have nothing of Shoal, and switches to it.

        Raises:
            BundleDamaged: It isn't whole, or not for this device; nothing was changed.
            InstallFailed: It can't be installed; what ran before runs on.
            Refused: A trial is going on.
            LauncherBroken: Its launcher doesn't start.
            OSError: Something can't be written.
        """
        manifest = read_manifest(bundle)
        check_fits(manifest)
        check_files(bundle, manifest)
        layout = self._layout
        ours = layout.prefix == PREFIX and os.geteuid() == 0
        who = account.make(layout.state_dir) if ours and self._options.user else None
        for directory in (layout.prefix, layout.config.parent):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for directory in (layout.state_dir, layout.updates):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            if who is not None:
                who.own(directory)
        self._take_token(who)
        options = self._options
        configuration.lay(
            layout,
            bundle / "config",
            device=options.device,
            replace=options.replace_config,
            tell=self._tell,
        )
        if not (layout.boot / "__main__.py").exists():
            beside = bundle / "boot"
            put_boot(layout, beside if beside.is_dir() else Path(__file__).parent)
        write_wrapper(layout)
        installed = Installer(layout, self._store, tell=self._tell).install(bundle)
        if self._store.read().current is not installed.slot:
            reason = options.reason
            self._store.change(lambda state, now: transitions.switch(state, reason, now))
        if ours:
            self._put_commands()
        if ours and options.units:
            self._hand_to_systemd(bundle / "units")
        return installed

    def _put_commands(self) -> None:
        COMMANDS.mkdir(parents=True, exist_ok=True)
        link_durably(COMMANDS / "shoal-slots", str(self._layout.wrapper))
        link_durably(COMMANDS / "shoal", str(self._layout.current / "venv" / "bin" / "shoal"))

    def _take_token(self, who: account.Account | None) -> None:
        given = os.environ.get(TOKEN_VARIABLE)
        path = self._layout.token
        if given and Path(given).exists() and Path(given).absolute() != path.absolute():
            write_durably(path, read_plain(Path(given), MAX_TOKEN_BYTES), mode=0o600)
            self._tell(f"the enrolment token is in {path}")
        if path.exists():
            path.chmod(0o600)
            if who is not None:
                who.own(path)

    def _hand_to_systemd(self, source: Path) -> None:
        tool = shutil.which("systemctl")
        if tool is None or not source.is_dir():
            self._tell("no systemd here: start `shoal-slots run` by other means")
            return
        UNITS.mkdir(parents=True, exist_ok=True)
        for unit in sorted(source.iterdir()):
            content = unit.read_bytes()
            target = UNITS / unit.name
            if not target.exists() or target.read_bytes() != content:
                write_durably(target, content)
        systemctl(tool, "enable", AGENT_UNIT, UPDATE_PATH_UNIT)
        if SYSTEMD_RUNS.is_dir():
            systemctl(tool, "daemon-reload")
            systemctl(tool, "start", UPDATE_PATH_UNIT)
            systemctl(tool, "--no-block", "restart", AGENT_UNIT)
            self._tell(f"{AGENT_UNIT} is started")


def systemctl(tool: str, *arguments: str) -> None:
    """Asks systemd for something.

    Raises:
        OSError: It refused.
    """
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")


def restart_agent(layout: Layout) -> bool:
    """Has systemd start the agent of the slot that is current now; False where it runs none."""
    tool = shutil.which("systemctl")
    if tool is None or layout.prefix != PREFIX or not SYSTEMD_RUNS.is_dir() or os.geteuid() != 0:
        return False
    systemctl(tool, "--no-block", "restart", AGENT_UNIT)
    return True
