"""All rollouts of a learner: started, followed and ended; on disk before anybody hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Final, Protocol

from cloud_learner.downlink.published import Published
from cloud_learner.fleet.teller import Teller
from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.rollout.decide import Outcome, Report, decide
from cloud_learner.rollout.directive import Directives
from cloud_learner.rollout.plan import Kind, Plan
from cloud_learner.rollout.policy_rollout import PolicyRollouts, choose_versions, held_version
from cloud_learner.rollout.rollout import Action, Enter, Rollout, State
from cloud_learner.rollout.store import RolloutStore
from cloud_learner.rollout.telling import tell
from shoal.errors import ConfigError, PolicyLogError, RolloutError
from shoal.logs import get_logger
from shoal.v1 import device_pb2

LOOK_S: Final = 1.0
"""Between two looks at a rollout about which nothing was heard."""
SAVE_CLOCK_S: Final = 10.0
"""How much of a rollout's own time a killed learner may lose."""
GRACE_S: Final = 15.0
"""After the learner's start: as long as devices may take to be heard of, no time counts."""
IDLE_TRAINING: Final = "rollout_idles_training"
_log = get_logger("rollout")


class Devices(Teller, Protocol):
    """What is asked of the fleet; `cloud_learner.fleet.fleet.Fleet` answers."""

    def present(self) -> Mapping[str, float]:
        """Those that act now."""

    def statuses(self) -> Mapping[str, device_pb2.Status]:
        """The last birth or death of each that acts in what this fleet trains for."""

    def status_of(self, device_id: str) -> device_pb2.Status | None:
        """The last birth or death of one."""

    def raise_condition(self, name: str, message: str) -> None:
        """Says that something is wrong until it is cleared."""

    def clear_condition(self, name: str) -> None:
        """Says that it is over."""


class Rollouts:
    """One at most of each kind is in progress. Used from the event loop.

    rollouts = Rollouts(store, devices, policies, bundles)
    await rollouts.serve()              # follows what is in progress, until cancelled
    rollout = await rollouts.start(plan)
    await rollouts.hear(rollout.rollout_id, "pi-1", outcome)
    """

    def __init__(
        self,
        store: RolloutStore,
        devices: Devices,
        policies: PolicyRollouts,
        bundles: BundleStore,
        *,
        policies_refused: str = "",
        trains_from: Callable[[int], bool] = lambda _version: True,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Goes on with what is on disk; a policy rollout holds its devices from now on.

        Args:
            store: Where they are kept.
            devices: Who is there.
            policies: What carries out rollouts of policies.
            bundles: What agents are rolled out from.
            policies_refused: Why none of a policy may start here; empty: it may.
            trains_from: Whether chunks of a policy version are recent enough to be trained from.
            clock: Monotonic seconds.
            wall_clock: Seconds since the epoch, for people.

        Raises:
            RolloutError: The disk refuses.
        """
        self._store = store
        self._devices = devices
        self._policies = policies
        self._bundles = bundles
        self._policies_refused = policies_refused
        self._trains_from = trains_from
        self._clock = clock
        self._wall_clock = wall_clock
        self._rollouts = {each.rollout_id: each for each in store.load()}
        self._held: dict[int, Published] = {}
        self._said: dict[int, dict[str, Outcome]] = {}
        self._changing = asyncio.Lock()
        self._news = asyncio.Condition()
        self._revision = 0
        self._counted_s = self._grace_s = clock() + GRACE_S
        self._from_before = frozenset(self._rollouts)
        self._saved_s: dict[int, float] = {}
        self.directives = Directives(lambda: self.all, bundles, devices)
        self._hold_on()

    # ------------------------------------------------------------------------------ what there is

    @property
    def all(self) -> Sequence[Rollout]:
        """Every one, the newest first."""
        return [self._rollouts[each] for each in sorted(self._rollouts, reverse=True)]

    def find(self, rollout_id: int) -> Rollout | None:
        """One by its number, or the newest for 0."""
        newest = max(self._rollouts, default=0)
        return self._rollouts.get(rollout_id or newest)

    def devices_of(self, plan: Plan) -> list[str]:
        """The devices that it is for, as far as they are known."""
        fits = self._bundles.fits(plan.version) if plan.kind is Kind.AGENT else None
        return [
            device_id
            for device_id, status in self._devices.statuses().items()
            if plan.is_for(device_id) and (fits is None or fits(status))
        ]

    @property
    def revision(self) -> int:
        """Another one whenever something changed."""
        return self._revision

    async def news(self, revision: int) -> None:
        """Waits until the revision is another."""
        async with self._news:
            await self._news.wait_for(lambda: self._revision != revision)

    # ------------------------------------------------------------------------------- what is done

    async def start(self, plan: Plan) -> Rollout:
        """Starts one.

        Raises:
            ConfigError: It cannot be: there is no such version, or one of its kind goes on.
            RolloutError: The disk refuses.
            PolicyLogError: The same.
        """
        async with self._changing:
            rollout = replace(
                self.draft(plan), created_unix_ms=int(self._wall_clock() * 1000)
            ).noting("started", plan.reason, 0.0)
            rollout = await asyncio.to_thread(self._store.create, rollout)
            self._rollouts[rollout.rollout_id] = rollout
            try:
                if plan.kind is Kind.POLICY:
                    await self._hold(rollout)  # before the candidate is the newest
                    versions = await asyncio.to_thread(self._policies.publish, rollout)
                    rollout = replace(rollout, versions=versions)
                    await self._hold(rollout)
                rollout = await self._do(rollout, [Enter(State.ACTIVE, plan.reason)])
            except (PolicyLogError, RolloutError) as error:
                await self._do(rollout, [Enter(State.ABORTED, f"could not start: {error}")])
                raise
            await self._look(rollout.rollout_id)
            return self._rollouts[rollout.rollout_id]

    def draft(self, plan: Plan) -> Rollout:
        """What would be started.

        Raises:
            ConfigError: It cannot be.
        """
        going = next((r for r in self.all if r.plan.kind is plan.kind and not r.state.ended), None)
        if going is not None:
            raise ConfigError(
                f"rollout {going.rollout_id} of {plan.kind} {going.plan.version} is {going.state}: "
                f"wait for it, or end it by `shoal rollout abort {going.rollout_id}`"
            )
        known = sorted(self._devices.statuses())
        if plan.devices and not any(plan.is_for(each) for each in known):
            raise ConfigError(
                f"no device is called {plan.devices!r}: the fleet knows "
                f"{shorten(', '.join(known), 200) or 'none'}"
            )
        number = max(self._rollouts, default=0) + 1
        if plan.kind is Kind.AGENT:
            self._bundles.require(plan.version)
            return Rollout(number, plan)
        if self._policies_refused:
            raise ConfigError(self._policies_refused)
        returning = next((r for r in self.all if r.gives_back), None)
        if returning is not None:
            raise ConfigError(f"rollout {returning.rollout_id} is still being undone: try again")
        return Rollout(
            number, plan, versions=choose_versions(self._policies.log, int(plan.version))
        )

    async def enter(self, rollout_id: int, state: State, reason: str) -> Rollout:
        """Pauses, resumes or aborts one.

        Args:
            rollout_id: 0: the newest that has not ended.
            state: `PAUSED`, `ACTIVE` or `ABORTED`.
            reason: For people.

        Raises:
            ConfigError: There is none, or it has ended.
            RolloutError: The disk refuses.
        """
        async with self._changing:
            going = [each for each in self.all if not each.state.ended]
            rollout = self._rollouts.get(rollout_id) if rollout_id else next(iter(going), None)
            if rollout is None:
                which = f"rollout {rollout_id}" if rollout_id else "rollout in progress"
                raise ConfigError(f"there is no {which}: see `shoal rollout ls`")
            if rollout.state.ended:
                raise ConfigError(f"rollout {rollout.rollout_id} is {rollout.state} already")
            if rollout.state is state:
                return rollout
            return await self._do(rollout, [Enter(state, reason)])

    async def hear(self, rollout_id: int, device_id: str, outcome: Outcome) -> None:
        """Takes what a device says; it is on disk when this returns.

        Raises:
            RolloutError: The disk refuses.
        """
        self._said.setdefault(rollout_id, {})[device_id] = outcome
        async with self._changing:  # whoever comes first does it for all who wait
            if self._said.get(rollout_id, {}).get(device_id) is outcome:
                await self._look(rollout_id)

    async def serve(self) -> None:
        """Follows all of them, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Decides about each, once."""
        now_s = self._clock()
        passed_s, self._counted_s = now_s - self._counted_s, max(now_s, self._counted_s)
        for rollout in self.all:
            if rollout.state is State.ACTIVE and passed_s > 0:
                counted = replace(rollout, ran_s=rollout.ran_s + passed_s)
                self._rollouts[rollout.rollout_id] = counted
            try:
                async with self._changing:
                    if self._rollouts[rollout.rollout_id].gives_back:
                        await self._give_back(self._rollouts[rollout.rollout_id])
                    elif not rollout.state.ended:
                        await self._look(rollout.rollout_id)
            except (RolloutError, PolicyLogError) as error:
                _log.warning("rollout_waits", rollout=rollout.rollout_id, problem=str(error))
        self._tell_of_idle_training()

    def _tell_of_idle_training(self) -> None:
        """Held devices fall behind; beyond the bound on lag all that they make expires."""
        holding = (r for r in self.all if r.plan.kind is Kind.POLICY and not r.state.ended)
        stale = next((r for r in holding if not self._trains_from(held_version(r))), None)
        if stale is None:
            self._devices.clear_condition(IDLE_TRAINING)
            return
        self._devices.raise_condition(
            IDLE_TRAINING,
            f"rollout {stale.rollout_id} holds devices at version {held_version(stale)}, which is "
            "beyond training.max_lag: what they make expires until it ends, or is ended by "
            f"`shoal rollout abort {stale.rollout_id}`",
        )

    # -------------------------------------------------------------------------------------- parts

    async def _look(self, rollout_id: int) -> None:
        """Decides about one; `_changing` is held."""
        rollout = self._rollouts[rollout_id]
        said = self._said.pop(rollout_id, {})
        present = self._devices.present()
        reports = {
            each: Report(each in present, said.get(each))
            for each in {*self.devices_of(rollout.plan), *said}
        }
        actions = decide(self._as_far_as_known(rollout), reports, rollout.ran_s)
        saved_s = self._saved_s.get(rollout_id, 0.0)
        if not actions and rollout.ran_s - saved_s < SAVE_CLOCK_S:
            return
        try:
            await self._do(rollout, actions)
        except RolloutError:
            self._said[rollout_id] = {**said, **self._said.get(rollout_id, {})}
            raise

    def _as_far_as_known(self, rollout: Rollout) -> Rollout:
        """Right after the learner's start devices are not heard of yet: nobody joins by that."""
        early = rollout.rollout_id in self._from_before and self._clock() < self._grace_s
        if early and rollout.state is State.ACTIVE:
            return replace(rollout, state=State.PAUSED)
        return rollout

    async def _do(self, before: Rollout, actions: Sequence[Action]) -> Rollout:
        """Makes actions durable, then real; `_changing` is held."""
        after = before
        for action in actions:
            after = after.after(action, after.ran_s)
        known = self._rollouts[before.rollout_id]
        await asyncio.to_thread(self._store.save, known, after)
        # Its clock went on meanwhile.
        after = replace(after, ran_s=max(after.ran_s, self._rollouts[after.rollout_id].ran_s))
        self._rollouts[after.rollout_id] = after
        self._saved_s[after.rollout_id] = after.ran_s
        for action in actions:
            tell(self._devices, before, after, action)
        if after.plan.kind is Kind.POLICY:
            await self._carry_out(after, ended_before=before.state.ended)
        await self._tell()
        return self._rollouts[after.rollout_id]

    async def _tell(self) -> None:
        self._revision += 1
        async with self._news:
            self._news.notify_all()

    async def _carry_out(self, rollout: Rollout, *, ended_before: bool) -> None:
        if rollout.gives_back:
            await self._give_back(rollout)
        elif rollout.state is State.PROMOTED and not ended_before:
            self._policies.release(self._held.get(rollout.versions.candidate))
        elif not rollout.state.ended:
            self._policies.hold(rollout, self._held)

    async def _give_back(self, rollout: Rollout) -> None:
        """Has an aborted rollout's devices go back; tried again where the disk refuses."""
        self._policies.hold(rollout, self._held)  # nobody goes on with it from here on
        try:
            published = await asyncio.to_thread(self._policies.give_back, rollout)
            undo = 0 if published is None else published.version
            versions = replace(rollout.versions, undo=undo, undone=True)
            undone = replace(rollout, versions=versions)
            await asyncio.to_thread(self._store.save, rollout, undone)
        except (PolicyLogError, RolloutError) as error:
            _log.warning("rollout_not_undone", rollout=rollout.rollout_id, problem=str(error))
            return
        self._rollouts[rollout.rollout_id] = undone
        self._policies.release(published)
        await self._tell()

    async def _hold(self, rollout: Rollout) -> None:
        self._held = await asyncio.to_thread(self._policies.read, rollout)
        self._policies.hold(rollout, self._held)

    def _hold_on(self) -> None:
        """Before any device asks: goes on with what was in progress when the learner ended."""
        for rollout in reversed(self.all):
            self._saved_s[rollout.rollout_id] = rollout.ran_s
            if rollout.state is State.STARTING:
                self._abort_now(rollout, "the learner ended while it started")
            going = self._rollouts[rollout.rollout_id]
            if going.plan.kind is not Kind.POLICY or not going.in_progress:
                continue
            try:
                self._held = self._policies.read(going)
            except PolicyLogError as error:
                self._held = {}
                self._abort_now(going, str(error))
            self._policies.hold(self._rollouts[rollout.rollout_id], self._held)

    def _abort_now(self, rollout: Rollout, reason: str) -> None:
        after = rollout.after(Enter(State.ABORTED, reason), rollout.ran_s)
        self._store.save(rollout, after)
        self._rollouts[rollout.rollout_id] = after
