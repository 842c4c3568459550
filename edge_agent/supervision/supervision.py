"""The agent's side of being supervised: it says that it goes on, and what became of its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge_agent.acting.actor import Counters
from edge_agent.events import Events
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.supervision.heart import Heart
from edge_agent.supervision.notifier import HELD, Notifier
from edge_agent.supervision.slot_events import SlotEvents
from edge_agent.supervision.slot_file import SlotFile
from edge_agent.supervision.trial_witness import TrialWitness
from shoal.logs import get_logger
from shoal.v1 import slot_pb2 as pb

INTERVAL_S: Final = 1.0
"""How often it is looked at: far below any watchdog."""

log = get_logger("supervision")


class Supervision:
    """Feels the heart of the control thread and keeps the launcher informed.

    supervision = Supervision(SlotFile.from_environ(), Notifier.from_environ(), ...)
    services["supervision"] = supervision.serve
    """

    def __init__(
        self,
        slots: SlotFile,
        notifier: Notifier,
        events: Events,
        witness: TrialWitness,
        heart: Heart,
        *,
        policies: PolicyStore,
        counters: Counters,
        state_dir: Path,
        has_task: Callable[[], bool] = lambda: True,
    ) -> None:
        """Tells nothing yet.

        Args:
            slots: The launcher's file.
            notifier: To whoever started this process.
            events: To the fleet.
            witness: Of a trial.
            heart: Of the control thread.
            policies: Whether one acts.
            counters: How much was acted.
            state_dir: The agent's own.
            has_task: Whether there is something to act in.
        """
        self._slots, self._notifier = slots, notifier
        self._witness, self._heart = witness, heart
        self._policies, self._counters = policies, counters
        self._told = SlotEvents(state_dir, events)
        self._has_task = has_task
        self._said: tuple[str, ...] = ()

    async def serve(self) -> None:
        """Says that the agent is up, and then how it is, until cancelled."""
        self._notifier.tell("READY=1")
        try:
            while True:
                self._tell()
                await asyncio.to_thread(self._look)
                await asyncio.sleep(INTERVAL_S)
        finally:
            self._notifier.tell("STOPPING=1")

    def report(self) -> pb.SlotReport | None:
        """How the slot stands; None where no launcher started this agent."""
        return self._slots.report(self.held)

    @property
    def held(self) -> str:
        """What the agent waits for without being to blame; empty: for nothing."""
        return held(
            has_policy=self._policies.current is not None,
            rejected=sum(self._policies.rejections.values()),
            has_task=self._has_task(),
        )

    def _tell(self) -> None:
        if self._heart.felt(self._counters.vector_steps):
            self._notifier.tell("WATCHDOG=1")
        waits, policy = self.held, self._policies.current
        acting = f"acting with policy {policy.version}" if policy is not None else "waiting"
        said = (f"{HELD}={waits}", f"STATUS=held: {waits}" if waits else f"STATUS={acting}")
        if said != self._said:
            self._said = said
            self._notifier.tell(*said)

    def _look(self) -> None:
        """Reads and writes files: not for the event loop."""
        self._slots.refresh()
        standing = self._slots.standing
        if standing is None:
            return
        try:
            if standing.trial is not None and self._witness.testify(standing.trial.number):
                log.info("trial_passed", slot=standing.name, trial=standing.trial.number)
            self._told.tell(standing.history)
        except OSError as error:
            log.warning("trial_not_noted", error=str(error))


def held(*, has_policy: bool, rejected: int, has_task: bool) -> str:
    """What an agent waits for that its version can't be blamed for; empty: for nothing.

    A version that refuses the policies it is offered is to blame for having none.

    Args:
        has_policy: Whether a policy acts.
        rejected: Policies refused in this run.
        has_task: Whether there is something to act in.
    """
    if not has_policy:
        return "no policy" if not rejected else ""
    return "" if has_task else "no task"
