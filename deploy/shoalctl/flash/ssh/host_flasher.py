"""One host from whatever state it is in to one that acts with a bundle."""

from __future__ import annotations

import asyncio
import getpass
import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from shoal.errors import ConnectionFailed, FlashFailed, ShoalError
from shoal.services import backoff
from shoalctl.flash.ssh.facts import Facts
from shoalctl.flash.ssh.host import Host
from shoalctl.flash.ssh.host_keys import HostKeyRefused
from shoalctl.flash.ssh.host_progress import HostProgress
from shoalctl.flash.ssh.lease import under_lock
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.plan import (
    COMMAND_TIMEOUT_S,
    Action,
    Step,
    lock_action,
    plan,
    slots_command,
    uploaded,
)
from shoalctl.flash.ssh.preflight import HostRefused, choose_bundle, judge
from shoalctl.flash.ssh.remote import LinkLost, Login, Remote, connect
from shoalctl.flash.ssh.result import HostResult, Outcome, PlannedCommand
from shoalctl.flash.ssh.scout import Found, find_out
from shoalctl.flash.ssh.scripts import DAMAGED_STATUS
from shoalctl.flash.ssh.settings import FlashSettings
from shoalctl.flash.ssh.tokens import TokenSource
from shoalctl.flash.ssh.trial import Standing, Verdict, read_slots, standing_of
from shoalctl.flash.ssh.upload import upload
from shoalctl.flash.ssh.way import Way

RECONNECT_BASE_S: Final = 1.0
RECONNECT_CAP_S: Final = 30.0
_KEPT: Final = re.compile(
    r"^shoal-slots: (\S+ differs from the bundle's and is kept;.*)$", re.MULTILINE
)


class HostFlasher:
    """Flashes one host.

    result = await HostFlasher(host, bundles, login, settings, tokens, progress).flash()
    """

    def __init__(
        self,
        host: Host,
        bundles: Mapping[str, OfflineBundle],
        login: Login,
        settings: FlashSettings,
        tokens: TokenSource | None,
        progress: HostProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._bundles = bundles
        self._login = login
        self._settings = settings
        self._tokens = tokens
        self._progress = progress
        self._clock = clock
        self._way = Way(host, clock, clock())

    async def flash(self) -> HostResult:
        """Does what is left to do. Never raises for what is wrong with this host."""
        try:
            result = await self._until_done()
        except ShoalError as error:
            result = self._way.failure(error)
        except asyncio.CancelledError:
            result = self.interrupted()
            self._progress.end(self._host.name, last_words(result))
            raise
        self._progress.end(self._host.name, last_words(result))
        return result

    def interrupted(self) -> HostResult:
        """The result of a flash that was cancelled."""
        after = {
            Step.WAIT: "it was switched to and goes on by itself: it is committed once it acted, "
            "or rolled back",
        }
        return self._way.result(
            Outcome.INTERRUPTED,
            after.get(self._way.step, "what ran there before runs on; run this again to go on"),
        )

    async def _until_done(self) -> HostResult:
        failures, sent_before = 0, 0
        while True:
            try:
                return await self._once()
            except ConnectionFailed as error:
                if not self._is_of_the_link(error):
                    raise
                if self._way.sent_bytes > sent_before:
                    failures, sent_before = 0, self._way.sent_bytes
                if failures >= self._settings.retries:
                    raise
                wait_s = backoff(
                    failures, base_s=RECONNECT_BASE_S, cap_s=RECONNECT_CAP_S, rng=random.Random()
                )
                failures += 1
                self._way.reconnects += 1
                self._progress.say(self._host.name, f"{error}; trying again in {wait_s:.1f} s")
                await asyncio.sleep(wait_s)

    def _is_of_the_link(self, error: ConnectionFailed) -> bool:
        """Whether trying again may help: the link was lost, or is not back yet."""
        back = self._way.step is Step.CONNECT and self._way.reconnects > 0
        return isinstance(error, LinkLost) or (back and not isinstance(error, HostKeyRefused))

    async def _once(self) -> HostResult:
        self._begin(Step.CONNECT)
        async with connect(self._host, self._login) as remote:
            remote.sudo_password = self._way.sudo_password
            self._begin(Step.PREFLIGHT)
            found = await self._find_out(remote)
            bundle = self._way.bundle = choose_bundle(found.facts, self._bundles)
            standing = self._standing(found.facts, bundle)
            if self._way.first is None:
                self._way.first = standing.verdict
            if self._way.switched and standing.verdict is Verdict.ROLLED_BACK:
                return self._rolled_back(standing)
            actions = self._actions(found, standing, bundle)
            if not actions:
                return self._outcome(standing, waited=False)
            self._check(found, standing, bundle)
            lock = lock_action(self._settings.places, who())
            if self._settings.dry_run:
                return self._planned(found.facts, (lock, *actions))
            if [action.step for action in actions] == [Step.WAIT]:
                return await self._wait(remote, bundle)
            self._begin(Step.LOCK)
            facts = await under_lock(remote, lock, lambda: self._do_all(remote, bundle))
            return await self._end(remote, facts, bundle)

    async def _do_all(self, remote: Remote, bundle: OfflineBundle) -> Facts:
        # What was true before the lock may have changed until it was had.
        found = await self._find_out(remote)
        standing = self._standing(found.facts, bundle)
        for action in self._actions(found, standing, bundle):
            if action.step is not Step.WAIT:
                await self._do(remote, action, found.facts, bundle)
        return found.facts

    async def _find_out(self, remote: Remote) -> Found:
        found = await find_out(remote, self._settings.places, ask=self._login.ask)
        self._way.sudo_password = remote.sudo_password
        return found

    def _standing(self, facts: Facts, bundle: OfflineBundle) -> Standing:
        return standing_of(read_slots(facts.slots), bundle.manifest.digest)

    def _actions(
        self, found: Found, standing: Standing, bundle: OfflineBundle
    ) -> tuple[Action, ...]:
        version = bundle.manifest.version
        return plan(
            found.facts,
            standing,
            bundle,
            self._settings.places,
            reason=f"flashed over SSH by {who()}: bundle {version}",
            token=self._tokens is not None,
            wait=self._settings.wait_s is not None,
            device_id=self._host.device_id,
        )

    def _check(self, found: Found, standing: Standing, bundle: OfflineBundle) -> None:
        refusals = judge(
            found.facts,
            bundle,
            now_s=found.at_s,
            systemd=self._settings.places.systemd,
            allow=self._settings.allow,
            other_on_trial=standing.other_on_trial,
        )
        if refusals:
            raise HostRefused(refusals)

    async def _do(
        self, remote: Remote, action: Action, facts: Facts, bundle: OfflineBundle
    ) -> None:
        self._begin(action.step, bundle.size_bytes if action.step is Step.UPLOAD else None)
        if action.step is Step.UPLOAD:
            await self._upload(remote, facts, bundle)
            return
        stdin = b""
        if action.step is Step.TOKEN and self._tokens is not None:
            name = self._host.device_id or facts.hostname.partition(".")[0].lower()
            stdin = self._tokens.token_for(name).encode() + b"\n"
        done = await remote.run(
            action.command, stdin=stdin, root=action.root, timeout_s=action.timeout_s
        )
        if done.status:
            if action.step is Step.UNPACK and done.status == DAMAGED_STATUS:
                await remote.run(f"rm -f -- {uploaded(facts, bundle)}", timeout_s=60.0)
            raise FlashFailed(f"could not {action.says}: {done.complaint}")
        self._way.switched |= action.switches
        if action.step is Step.INSTALL:
            self._way.note = kept_configuration(done.errors)

    async def _upload(self, remote: Remote, facts: Facts, bundle: OfflineBundle) -> None:
        kept: int | None = None

        def advance(count: int) -> None:
            nonlocal kept
            if kept is None:  # the first that is told is what was there before
                kept = count
                if self._way.kept_bytes is None:
                    self._way.kept_bytes = count
            else:
                self._way.sent_bytes += count
            self._progress.advance(self._host.name, count)

        await upload(remote, bundle, uploaded(facts, bundle), advance=advance)

    async def _end(self, remote: Remote, facts: Facts, bundle: OfflineBundle) -> HostResult:
        if self._tokens is None and not facts.enrolled and not facts.token:
            waits = "it has no enrolment token: `shoal enroll approve NAME` lets it in when it asks"
            self._way.note = "; ".join(part for part in (self._way.note, waits) if part)
        if self._settings.wait_s is None:
            standing = await self._look(remote, bundle)
            return self._outcome(standing, waited=False)
        return await self._wait(remote, bundle)

    async def _wait(self, remote: Remote, bundle: OfflineBundle) -> HostResult:
        self._begin(Step.WAIT)
        if not self._settings.places.systemd:
            self._progress.say(
                self._host.name,
                f"it acts as soon as `{self._settings.places.slots} run` runs there",
            )
        deadline = self._clock() + (self._settings.wait_s or 0.0)
        while True:
            standing = await self._look(remote, bundle)
            if standing.verdict is not Verdict.ON_TRIAL or self._clock() >= deadline:
                return self._outcome(standing, waited=True)
            await asyncio.sleep(self._settings.poll_s)

    async def _look(self, remote: Remote, bundle: OfflineBundle) -> Standing:
        done = await remote.run(
            slots_command(self._settings.places), root=True, timeout_s=COMMAND_TIMEOUT_S
        )
        if done.status:
            raise FlashFailed(f"can't read the state of its slots: {done.complaint}")
        return standing_of(read_slots(done.text), bundle.manifest.digest)

    def _outcome(self, standing: Standing, *, waited: bool) -> HostResult:
        match standing.verdict:
            case Verdict.COMMITTED:
                was = self._way.first is Verdict.COMMITTED and not self._way.switched
                outcome = Outcome.UNCHANGED if was else Outcome.COMMITTED
                return self._way.result(outcome, slot=standing.slot)
            case Verdict.ON_TRIAL:
                waited_s = self._settings.wait_s
                reason = (
                    f"after {waited_s:g} s {standing.reason}: {self._what_to_do()}"
                    if waited
                    else standing.reason
                )
                result = self._way.result(Outcome.ON_TRIAL, reason, slot=standing.slot)
                return replace(result, ok=not waited, exit_code=3 if waited else 0)
            case Verdict.ROLLED_BACK:
                return self._rolled_back(standing)
        return self._way.result(
            Outcome.FAILED, f"the bundle is {standing.verdict} in its slots, and does not run"
        )

    def _what_to_do(self) -> str:
        places = self._settings.places
        if not places.systemd:
            return f"is `{places.slots} run` running there? See `{places.slots} status`"
        return (
            "it goes on by itself; see `shoal devices describe`, and `journalctl -u shoal-agent` "
            "there"
        )

    def _rolled_back(self, standing: Standing) -> HostResult:
        reason = f"{standing.reason}; bundle {standing.running or 'unknown'} runs again"
        return self._way.result(Outcome.ROLLED_BACK, reason, slot=standing.slot)

    def _planned(self, facts: Facts, actions: tuple[Action, ...]) -> HostResult:
        commands = tuple(
            PlannedCommand(action.step, action.says, action.shown(facts.privilege))
            for action in actions
        )
        return replace(self._way.result(Outcome.PLANNED), planned=commands)

    def _begin(self, step: Step, total_bytes: int | None = None) -> None:
        self._way.step = step
        self._progress.begin(self._host.name, step, total_bytes)


def kept_configuration(errors: bytes) -> str:
    """What `shoal-slots` said of a configuration that it left alone; empty: of none."""
    return "; ".join(_KEPT.findall(errors.decode("utf-8", "replace")))


def last_words(result: HostResult) -> str:
    """How it went, on one line."""
    return result.outcome.value.replace("_", " ") + (f": {result.reason}" if result.reason else "")


def who() -> str:
    """Who runs this, for the lock and the history of a host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
