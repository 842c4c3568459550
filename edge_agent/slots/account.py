"""Whom the agent runs as: a user of its own, where this process may become one."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edge_agent.slots.layout import USER


@dataclass(frozen=True, slots=True)
class Account:
    """A user and its group."""

    name: str
    uid: int
    gid: int

    def groups(self) -> list[int]:
        """Its supplementary groups: what lets an environment reach its hardware."""
        return [group.gr_gid for group in grp.getgrall() if self.name in group.gr_mem]

    def own(self, path: Path) -> None:
        """Gives it a file or a directory; not through a link.

        Raises:
            OSError: It can't be given away.
        """
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def find(name: str = USER) -> Account | None:
    """The account of a name; None where there is none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name, entry.pw_uid, entry.pw_gid)


def owner_of(path: Path) -> Account | None:
    """Whose a directory is; None if it is this process's own, or this process can't become it."""
    try:
        uid = path.stat().st_uid
        if os.geteuid() != 0 or uid == 0:
            return None
        entry = pwd.getpwuid(uid)
    except (OSError, KeyError):
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def make(home: Path, name: str = USER) -> Account:
    """Makes the agent's account where there is none.

    Raises:
        OSError: It can't be made.
    """
    there = find(name)
    if there is not None:
        return there
    tool = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        raise OSError(f"there is no useradd to make the user {name} with: make it by hand")
    done = subprocess.run(
        [
            *(tool, "--system", "--user-group", "--home-dir", str(home), "--no-create-home"),
            *("--shell", "/usr/sbin/nologin", name),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"useradd {name}: {done.stderr.strip()}")
    made = find(name)
    if made is None:
        raise OSError(f"useradd made no user {name}")
    return made


def run(
    command: list[str], *, timeout_s: float, account: Account | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, as that account if there is one.

    Raises:
        OSError: It can't be started.
        subprocess.TimeoutExpired: It took too long, and was killed.
    """
    environment = {
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "HOME": "/nonexistent" if account is not None else os.environ.get("HOME", "/"),
    }
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=cwd,
        env=environment,
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else account.groups(),
    )
