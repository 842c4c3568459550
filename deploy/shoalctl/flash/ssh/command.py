"""`shoal flash ssh` and `shoal flash rollback`: many hosts at a time. Constructs what they need."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoalctl.flash.ssh.host import Host, parse_host
from shoalctl.flash.ssh.host_flasher import HostFlasher
from shoalctl.flash.ssh.host_keys import KnownHosts
from shoalctl.flash.ssh.host_progress import HostProgress, host_progress_on
from shoalctl.flash.ssh.host_rollback import HostRollback
from shoalctl.flash.ssh.inventory import check_unique, read_inventory, select
from shoalctl.flash.ssh.offline_bundle import BundleShelf
from shoalctl.flash.ssh.remote import Login
from shoalctl.flash.ssh.result import HostResult
from shoalctl.flash.ssh.secret_prompt import SecretPrompt
from shoalctl.flash.ssh.settings import FlashSettings
from shoalctl.flash.ssh.tokens import TokenSource

MAX_PARALLEL = 256


@dataclass(frozen=True, slots=True)
class Targets:
    """Which hosts, and how to log in to them: as it was typed.

    Attributes:
        hosts: `USER@HOST`, as often as wanted.
        inventory: A file of hosts.
        limits: Which of them.
        parallel: How many at a time.
        identities: Private key files.
        known_hosts: Whose keys are trusted; None: the user's own file.
        accept_host_key: The fingerprint that one unknown host may show.
        interactive: Whether a person can be asked.
    """

    hosts: Sequence[str] = ()
    inventory: Path | None = None
    limits: Sequence[str] = ()
    parallel: int = 8
    identities: Sequence[Path] = ()
    known_hosts: Path | None = None
    accept_host_key: str | None = None
    interactive: bool = False

    def selected(self) -> tuple[Host, ...]:
        """The hosts that are meant.

        Raises:
            ConfigError: None are, or one is twice.
        """
        if self.inventory is None and self.limits:
            raise ConfigError("--limit selects from an inventory: give --inventory FILE too")
        typed = [parse_host(text) for text in self.hosts]
        listed = select(read_inventory(self.inventory), self.limits) if self.inventory else ()
        hosts = (*typed, *listed)
        if not hosts:
            raise ConfigError("no host: give USER@HOST, or --inventory FILE")
        check_unique(hosts)
        if self.accept_host_key is not None and len(hosts) > 1:
            raise ConfigError(
                f"--accept-host-key is for one host at a time, and {len(hosts)} are meant: name one"
            )
        return hosts


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all hosts.

    Attributes:
        results: In the order of the hosts.
        interrupted: Whether Ctrl-C ended it.
    """

    results: tuple[HostResult, ...] = field(default=())
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 if all is as it was asked for; of a single host what it failed by, else 1."""
        failed = [result for result in self.results if not result.ok]
        if self.interrupted:
            return 130
        if not failed:
            return 0
        return failed[0].exit_code if len(self.results) == 1 else 1


def run_flash_ssh(
    targets: Targets,
    bundles: Sequence[Path],
    settings: FlashSettings,
    tokens: TokenSource | None,
    *,
    fleet: Path,
    device_id: str | None = None,
    out: TextIO | None = None,
) -> Report:
    """Flashes the hosts.

    Args:
        targets: Which they are.
        bundles: Files, one an architecture; none: those of the inventory.
        settings: What is the same for all.
        tokens: What lets them enrol; None: an operator approves.
        fleet: The directory that has the key that bundles are signed with.
        device_id: The name of a single host.
        out: Where progress goes; stderr if nowhere else.

    Raises:
        ConfigError: What was typed is wrong; no host was asked anything.
        IdentityError: The fleet's key can't be read; the same.
        BundleRefused: A bundle is damaged, or another fleet's; the same.
    """
    from shoalctl.flash.bundle.fleet_trust import fleet_public_key

    hosts = targets.selected()
    if device_id is not None:
        if len(hosts) > 1:
            raise ConfigError("--device-id is for one host: an inventory names those of many")
        hosts = (replace(hosts[0], device_id=check_device_id(device_id)),)
    shelf = BundleShelf(bundles, fleet_public_key(fleet))
    by_host = {host.name: shelf.bundles_of(host) for host in hosts}

    def flash(host: Host, login: Login, progress: HostProgress) -> Work:
        flasher = HostFlasher(host, by_host[host.name], login, settings, tokens, progress)
        return Work(flasher.flash, flasher.interrupted)

    return _run(targets, hosts, flash, out or sys.stderr)


def run_rollback(
    targets: Targets, settings: FlashSettings, reason: str, *, out: TextIO | None = None
) -> Report:
    """Has the hosts go back to the slot beside the running one.

    Raises:
        ConfigError: What was typed is wrong; no host was asked anything.
    """

    def back(host: Host, login: Login, progress: HostProgress) -> Work:
        rollback = HostRollback(host, login, settings, reason, progress)
        return Work(rollback.roll_back, rollback.interrupted)

    return _run(targets, targets.selected(), back, out or sys.stderr)


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with one host, and what to say if it is cancelled."""

    do: Callable[[], Awaitable[HostResult]]
    interrupted: Callable[[], HostResult]


def _run(
    targets: Targets,
    hosts: Sequence[Host],
    work_on: Callable[[Host, Login, HostProgress], Work],
    out: TextIO,
) -> Report:
    if not 0 < targets.parallel <= MAX_PARALLEL:
        raise ConfigError(f"--parallel {targets.parallel}: give a number from 1 to {MAX_PARALLEL}")
    known = KnownHosts.load(
        targets.known_hosts or Path.home() / ".ssh" / "known_hosts", accept=targets.accept_host_key
    )

    async def run() -> Report:
        with host_progress_on(out) as progress:
            ask = SecretPrompt(progress.pausing) if targets.interactive else None
            login = Login(known, tuple(targets.identities), ask)
            works = [work_on(host, login, progress) for host in hosts]
            return await _all(works, targets.parallel)

    return asyncio.run(run())


async def _all(works: Sequence[Work], parallel: int) -> Report:
    """Works on all hosts, so many at a time; one that fails does not stop the others."""
    slots = asyncio.Semaphore(parallel)
    results: list[HostResult | None] = [None] * len(works)

    async def one(number: int, work: Work) -> None:
        async with slots:
            results[number] = await work.do()

    interrupted = False
    try:
        async with asyncio.TaskGroup() as group:
            for number, work in enumerate(works):
                group.create_task(one(number, work), name=f"host {number}")
    except asyncio.CancelledError:
        interrupted = True  # Ctrl-C: every host is told of, and none is left half changed
    done = tuple(
        result if result is not None else work.interrupted()
        for result, work in zip(results, works, strict=True)
    )
    return Report(done, interrupted)
