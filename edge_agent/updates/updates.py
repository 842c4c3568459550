"""Follows what the learner rolls out, and tells it what became of that here.

The control thread is not asked: it acts with whatever policy is current, and nothing here is
waited for by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import grpc
import grpc.aio

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import Refusal, explain, explain_unknown, open_channel
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from edge_agent.updates.acted import Acted
from edge_agent.updates.agent_update import AgentUpdate, asked_of
from edge_agent.updates.outcome import Outcome, Progress
from edge_agent.updates.policy_outcome import (
    PolicyAsked,
    PolicySeen,
    policy_outcome,
    worth_telling,
)
from edge_agent.updates.update_files import UpdateFiles
from shoal.errors import ShoalError
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub

BACKOFF_BASE_S: Final = 0.25
UNKNOWN_AGAIN_S: Final = 60.0
"""After which a server that knows no rollouts is asked again."""
REPORT_DEADLINE_S: Final = 10.0
MAX_REASON: Final = 300
_PROGRESS: Final = {
    Progress.STARTED: pb.ROLLOUT_PROGRESS_STARTED,
    Progress.SUCCEEDED: pb.ROLLOUT_PROGRESS_SUCCEEDED,
    Progress.FAILED: pb.ROLLOUT_PROGRESS_FAILED,
    Progress.LEFT: pb.ROLLOUT_PROGRESS_LEFT,
}

log = get_logger("updates")


class Policies(Protocol):
    """What is asked of a policy store."""

    @property
    def current(self) -> Policy | None:
        """The policy that acts."""

    @property
    def rejections(self) -> Counter[str]:
        """How many were refused, by reason; replaced, never changed."""

    def listening(self, changed: Callable[[], object]) -> AbstractContextManager[None]:
        """Has `changed` called, by any thread, whenever another policy became current."""


class Refusing(Protocol):
    """What is asked of the downlink."""

    @property
    def refusal(self) -> Refusal | None:
        """The policy that was refused last."""


class Updates:
    """One device's side of all rollouts.

    updates = Updates(config, identity, events, policies, downlink, acted, files, ...)
    await run_services(
        {"updates": updates.follow, "outcomes": updates.report, "agent": updates.agent.serve}
    )

    Attributes:
        agent: What it does about agents.
    """

    def __init__(
        self,
        config: ServerConfig,
        identity: Identity,
        events: Events,
        policies: Policies,
        downlink: Refusing,
        acted: Acted,
        files: UpdateFiles,
        *,
        fleet: str,
        public_key: bytes,
        run_id: bytes,
        rng: random.Random | None = None,
    ) -> None:
        """Connects nothing yet.

        Args:
            config: The learner's gRPC endpoint.
            identity: The device.
            events: What happens on the device.
            policies: What acts.
            downlink: How policies come.
            acted: How much was acted.
            files: The directory `updates/`.
            fleet: The device's fleet.
            public_key: Who signs bundles, 32 bytes.
            run_id: Of this process.
            rng: Of the backoff's jitter.
        """
        self._config = config
        self._identity = identity
        self._events = events
        self._policies = policies
        self._downlink = downlink
        self._acted = acted
        self._fleet = fleet
        self._run_id = run_id
        self._rng = rng or random.Random()
        self._server: RolloutsStub | None = None
        self._policy: PolicyAsked | None = None
        self._began: Counter[str] | None = None  # refusals when the version asked about began
        self._told: Outcome | None = None
        self._wake = asyncio.Event()
        self._trouble: str | None = None
        self.agent = AgentUpdate(
            files,
            events,
            fleet=fleet,
            public_key=public_key,
            server=lambda: self._server,
            tell=self._tell,
            rng=self._rng,
        )

    async def follow(self) -> None:
        """Watches what is to be run, for ever; ends only by being cancelled."""
        attempt = 0
        while True:
            try:
                async with open_channel(self._config, self._identity) as channel:
                    self._server = RolloutsStub(channel)
                    request = pb.WatchDirectiveRequest(
                        fleet=self._fleet, device_id=self._identity.name, run_id=self._run_id
                    )
                    async for directive in self._server.WatchDirective(request):
                        attempt, self._trouble = 0, None
                        self._take(directive)
                self._tell_trouble("the learner ended the watch")
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    where = f"{self._config.host}:{self._config.port}"
                    self._tell_trouble(explain_unknown(error, where, "rollouts"))
                    await asyncio.sleep(UNKNOWN_AGAIN_S)
                else:
                    self._tell_trouble(explain(error))
            except ShoalError as error:
                self._tell_trouble(str(error))
            except Exception as error:  # noqa: BLE001 a service border: acting goes on
                self._tell_trouble(f"{type(error).__name__}: {error}")
            finally:
                self._server = None
            cap_s = self._config.backoff_cap_s
            await asyncio.sleep(backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=cap_s, rng=self._rng))
            attempt += 1

    async def report(self) -> None:
        """Tells for ever what became of it; ends only by being cancelled."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in any thread
            if self._policy is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._wake.set)

        with (
            self._policies.listening(changed),
            self._events.listening(changed),
            self._acted.listening(changed),
        ):
            while True:
                await self._wake.wait()
                self._wake.clear()
                asked, outcome = self._policy, self._outcome()
                if asked is None or outcome is None:
                    continue
                if not worth_telling(outcome, self._told, asked):
                    continue
                if await self._tell(outcome):
                    self._told = outcome
                elif self._server is not None:  # it did not hear: else the next connection tells
                    await asyncio.sleep(self._rng.uniform(0.0, REPORT_DEADLINE_S))
                    self._wake.set()

    def _take(self, directive: pb.Directive) -> None:
        asked = None
        if directive.HasField("policy"):
            policy = directive.policy
            asked = PolicyAsked(
                policy.rollout_id, policy.version, policy.digest, max(1, policy.episodes)
            )
        if asked != self._policy:
            self._began = None
            log.info(
                "policy_asked",
                rollout=0 if asked is None else asked.rollout_id,
                policy_version=0 if asked is None else asked.version,
            )
        self.agent.ask(asked_of(directive.agent) if directive.HasField("agent") else None)
        self._policy = asked
        self._told = None  # the learner may have forgotten, or not heard
        self._wake.set()

    def _outcome(self) -> Outcome | None:
        asked = self._policy
        if asked is None:
            return None
        current, refusal = self._policies.current, self._downlink.refusal
        version = 0 if current is None else current.version
        rejections = self._policies.rejections
        if version == asked.version and self._began is None:
            self._began = rejections
        given_up = "" if self._began is None else ", ".join(rejections - self._began)
        seen = PolicySeen(
            current=version,
            was_current=self._began is not None,
            refused=0 if refusal is None else refusal.version,
            refused_reason="" if refusal is None else refusal.problem,
            given_up=given_up,
            acting=self._acted.now,
        )
        return policy_outcome(asked, seen)

    async def _tell(self, outcome: Outcome) -> bool:
        """Tells the learner; whether it heard, be it that it wants none of it."""
        server = self._server
        if server is None:
            return False
        request = pb.ReportOutcomeRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            run_id=self._run_id,
            rollout_id=outcome.rollout_id,
            progress=_PROGRESS[outcome.progress],
            digest=outcome.digest,
            episodes=outcome.episodes,
            reason=outcome.reason[:MAX_REASON],
        )
        try:
            await server.ReportOutcome(request, timeout=REPORT_DEADLINE_S)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return False  # its channel was closed under it
        except grpc.aio.AioRpcError as error:
            log.warning("outcome_not_told", problem=explain(error))
            return error.code() is grpc.StatusCode.FAILED_PRECONDITION  # it would be once more
        return True

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble; the downlink tells the fleet of the same server."""
        if message != self._trouble:
            self._trouble = message
            log.warning("directives_lost", problem=message)
