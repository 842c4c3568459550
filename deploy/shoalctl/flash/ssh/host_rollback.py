"""One host back to the slot beside the running one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.slots.state import State
from shoal.errors import FlashFailed, ShoalError
from shoalctl.flash.ssh.facts import Facts, Privilege
from shoalctl.flash.ssh.host import Host
from shoalctl.flash.ssh.host_flasher import last_words, who
from shoalctl.flash.ssh.host_progress import HostProgress
from shoalctl.flash.ssh.lease import under_lock
from shoalctl.flash.ssh.plan import Action, Step, lock_action, rollback_action
from shoalctl.flash.ssh.preflight import HostRefused, judge_privilege
from shoalctl.flash.ssh.remote import Login, Remote, connect
from shoalctl.flash.ssh.result import HostResult, Outcome, PlannedCommand
from shoalctl.flash.ssh.scout import find_out
from shoalctl.flash.ssh.settings import FlashSettings
from shoalctl.flash.ssh.trial import read_slots


@dataclass(slots=True)
class HostRollback:
    """Rolls one host back.

    result = await HostRollback(host, login, settings, "the arm shakes", progress).roll_back()
    """

    host: Host
    login: Login
    settings: FlashSettings
    reason: str
    progress: HostProgress
    clock: Callable[[], float] = time.monotonic
    _step: Step = Step.CONNECT
    _began: float = field(default=0.0)

    async def roll_back(self) -> HostResult:
        """Does it. Never raises for what is wrong with this host."""
        self._began = self.clock()
        try:
            result = await self._once()
        except HostRefused as error:
            slugs = tuple(refusal.reason.value for refusal in error.refusals)
            result = replace(self._result(Outcome.REFUSED, str(error), exit_code=1), refusals=slugs)
        except ShoalError as error:
            result = self._result(Outcome.FAILED, str(error), exit_code=error.exit_code)
        except asyncio.CancelledError:
            self.progress.end(self.host.name, last_words(self.interrupted()))
            raise
        self.progress.end(self.host.name, last_words(result))
        return result

    def interrupted(self) -> HostResult:
        """The result of a rollback that was cancelled."""
        return self._result(
            Outcome.INTERRUPTED,
            "one of its slots runs; see `shoal-slots status` there",
            exit_code=1,
        )

    async def _once(self) -> HostResult:
        self._begin(Step.CONNECT)
        async with connect(self.host, self.login) as remote:
            self._begin(Step.PREFLIGHT)
            facts = (await find_out(remote, self.settings.places, ask=self.login.ask)).facts
            refusals = tuple(judge_privilege(facts))
            if refusals:
                raise HostRefused(refusals)
            before = _state(facts)
            actions = self._actions()
            if self.settings.dry_run:
                return self._planned(before, facts.privilege, actions)
            self._begin(Step.LOCK)
            after = await under_lock(remote, actions[0], lambda: self._do_all(remote, actions[1:]))
        return self._result(Outcome.ROLLED_BACK, self.reason, state=after, ok=True)

    def _actions(self) -> tuple[Action, ...]:
        places = self.settings.places
        back = rollback_action(places, f"{self.reason} (by {who()})")
        return (lock_action(places, who()), back)

    async def _do_all(self, remote: Remote, actions: Sequence[Action]) -> State:
        for action in actions:
            await self._do(remote, action)
        found = await find_out(remote, self.settings.places, ask=self.login.ask)
        return _state(found.facts)

    async def _do(self, remote: Remote, action: Action) -> None:
        self._begin(action.step)
        done = await remote.run(action.command, root=action.root, timeout_s=action.timeout_s)
        if done.status:
            raise FlashFailed(f"could not {action.says}: {done.complaint}")

    def _planned(
        self, state: State, privilege: Privilege, actions: tuple[Action, ...]
    ) -> HostResult:
        commands = tuple(
            PlannedCommand(action.step, action.says, action.shown(privilege)) for action in actions
        )
        return replace(self._result(Outcome.PLANNED, state=state, ok=True), planned=commands)

    def _begin(self, step: Step) -> None:
        self._step = step
        self.progress.begin(self.host.name, step)

    def _result(
        self,
        outcome: Outcome,
        reason: str = "",
        *,
        state: State | None = None,
        ok: bool = False,
        exit_code: int = 0,
    ) -> HostResult:
        current = state.current if state else None
        release = state.slot(current).release if state and current else None
        return HostResult(
            host=self.host.name,
            login=self.host.login,
            outcome=outcome,
            ok=ok,
            step=self._step,
            reason=reason,
            exit_code=exit_code,
            bundle_version=release.bundle_version if release else None,
            digest=release.digest if release else None,
            slot=current,
            duration_s=self.clock() - self._began,
        )


def _state(facts: Facts) -> State:
    state = read_slots(facts.slots)
    if state.current is None:
        raise FlashFailed("no agent is installed there: `shoal flash ssh` installs one")
    return state
