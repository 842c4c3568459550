"""Finds out what a host is: one script, run as root where that is possible."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from shoal.errors import ConnectionFailed
from shoalctl.flash.ssh.facts import FACTS_SCRIPT, Facts, Privilege, parse_facts
from shoalctl.flash.ssh.plan import Places
from shoalctl.flash.ssh.remote import Ask, Remote

FACTS_TIMEOUT_S = 120.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Found:
    """The facts of a host, and when they were found by the clock here, Unix time."""

    facts: Facts
    at_s: float


def facts_command(places: Places) -> str:
    """What a host runs; the script comes by stdin."""
    return shlex.join(["sh", "-s", "--", places.prefix, places.state, places.staging])


async def find_out(
    remote: Remote, places: Places, *, ask: Ask | None, clock: Callable[[], float] = time.time
) -> Found:
    """Runs the script, and once more as root if sudo wants a password and a person can type it.

    Raises:
        LinkLost: The connection ended.
        FlashFailed: The host does not answer the script.
        ConnectionFailed: The password is wrong.
    """
    found = await _run(remote, places, clock, root=False)
    facts = found.facts
    if facts.privilege is Privilege.PASSWORD and (remote.sudo_password or ask):
        if remote.sudo_password is None and ask is not None:
            remote.sudo_password = await _sudo_password(remote, facts.user, ask)
        remote.privilege = Privilege.SUDO
        placed = replace(places, staging=facts.staging)
        as_root = await _run(remote, placed, clock, root=True)
        return Found(
            replace(as_root.facts, user=facts.user, privilege=Privilege.SUDO), as_root.at_s
        )
    remote.privilege = facts.privilege
    return found


async def _run(remote: Remote, places: Places, clock: Callable[[], float], *, root: bool) -> Found:
    began_s = clock()
    done = await remote.run(
        facts_command(places), stdin=FACTS_SCRIPT.encode(), root=root, timeout_s=FACTS_TIMEOUT_S
    )
    return Found(parse_facts(done.text), (began_s + clock()) / 2)


async def _sudo_password(remote: Remote, user: str, ask: Ask) -> str:
    for _ in range(_ATTEMPTS):
        password = await ask(f"Password of {user} on {remote.host.name}, for sudo")
        done = await remote.run(
            "sudo -k -S -p '' true", stdin=password.encode() + b"\n", timeout_s=30.0
        )
        if not done.status:
            return password
    raise ConnectionFailed(f"sudo on {remote.host.name} does not take the password of {user}")
