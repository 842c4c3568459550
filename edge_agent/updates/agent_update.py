"""Fetches a bundle that is rolled out, proves it, and asks the launcher to switch to it.

All of it beside the control thread, which acts on; a network or a learner that is away delays an
update, and fails nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import grpc.aio

from edge_agent.downlink.downlink import explain
from edge_agent.events import Events
from edge_agent.updates.agent_step import AgentAsked, Next, Step, next_step
from edge_agent.updates.outcome import Outcome
from edge_agent.updates.update_files import UpdateFiles
from shoal.errors import BundleRefused, WireError
from shoal.logs import get_logger
from shoal.services import backoff
from shoal.v1 import device_pb2
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.rollout_pb2_grpc import RolloutsStub

LOOK_S: Final = 2.0
"""Between two looks at what the launcher, another process, does."""
BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 60.0

log = get_logger("updates")


class AgentUpdate:
    """One device's side of the rollouts of agents.

    update = AgentUpdate(files, events, fleet="pond", public_key=key, ...)
    await run_services({"agent_update": update.serve})
    update.ask(asked)

    Attributes:
        refused: Bundles that were not accepted in this run.
    """

    def __init__(
        self,
        files: UpdateFiles,
        events: Events,
        *,
        fleet: str,
        public_key: bytes,
        server: Callable[[], RolloutsStub | None],
        tell: Callable[[Outcome], Awaitable[bool]],
        rng: random.Random | None = None,
    ) -> None:
        """Asks for nothing yet.

        Args:
            files: The directory `updates/`.
            events: Where refusals are told.
            fleet: The device's fleet.
            public_key: Who signs bundles, 32 bytes.
            server: The learner, while it is connected.
            tell: Tells the learner; whether it heard.
            rng: Of the backoff's jitter.
        """
        self.refused = 0
        self._files = files
        self._events = events
        self._fleet = fleet
        self._public_key = public_key
        self._server = server
        self._tell = tell
        self._rng = rng or random.Random()
        self._asked: AgentAsked | None = None
        self._begun: AgentAsked | None = None
        self._problem = ""
        self._told: Outcome | None = None
        self._attempt = 0
        self._wake = asyncio.Event()

    def ask(self, asked: AgentAsked | None) -> None:
        """Is told what the device is to run; None: nothing in particular."""
        if asked != self._asked:
            log.info(
                "agent_asked",
                rollout=0 if asked is None else asked.rollout_id,
                bundle="" if asked is None else asked.version,
                go_back=asked is not None and asked.go_back,
            )
            self._problem, self._attempt = "", 0
        self._asked = asked
        self._told = None  # the learner may have forgotten, or not heard
        self._wake.set()

    async def serve(self) -> None:
        """Does what is asked for, for ever; ends only by being cancelled."""
        look_s: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._wake.wait()
            self._wake.clear()
            asked = self._asked
            if asked is None:
                look_s = None
                continue
            try:
                look_s = await self._advance(asked)
            except BundleRefused as error:
                self._refuse(asked, error.reason, str(error))
                look_s = 0.0
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, OSError, WireError) as error:
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, grpc.aio.AioRpcError):
                    why = explain(error)
                log.warning("update_waits", bundle=asked.version, problem=why)
                look_s = backoff(
                    self._attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng
                )
                self._attempt += 1

    async def _advance(self, asked: AgentAsked) -> float | None:
        """Does the next step; after how long to look again, None: when something is asked for."""
        if self._begun != asked:
            await asyncio.to_thread(self._files.begin, asked)
            self._begun = asked
        seen = await asyncio.to_thread(self._files.look, asked, problem=self._problem)
        following = next_step(asked, seen)
        await self._say(asked, following)
        match following.step:
            case Step.DOWNLOAD:
                await self._download(asked)
                return 0.0
            case Step.REQUEST | Step.LEAVE:
                await asyncio.to_thread(self._files.request, asked)
                return LOOK_S
            case Step.WAIT:
                return LOOK_S
            case Step.NOTHING:
                if following.progress is not None:
                    await asyncio.to_thread(self._files.clean)
        told = following.progress is None or self._told is not None
        return None if told else LOOK_S

    async def _say(self, asked: AgentAsked, following: Next) -> None:
        outcome = following.outcome(asked)
        if outcome is None or outcome == self._told:
            return
        if await self._tell(outcome):
            self._told = outcome

    async def _download(self, asked: AgentAsked) -> None:
        """Fetches what is missing of a bundle, and proves it.

        Raises:
            BundleRefused: It is not what was announced, or not the fleet's.
            grpc.aio.AioRpcError: The learner is not there.
            OSError: The disk refuses.
            WireError: The learner sends something else.
        """
        server = self._server()
        if server is None:
            raise WireError("the learner is not connected")
        lacking = await asyncio.to_thread(self._files.lacks_room, asked)
        if lacking:
            raise BundleRefused("room", lacking)
        path = self._files.part(asked)
        file = await asyncio.to_thread(path.open, "ab")
        with file:
            have = file.tell()
            if have > asked.bundle_bytes:
                await asyncio.to_thread(file.truncate, 0)
                have = 0
            request = pb.GetBundleRequest(fleet=self._fleet, digest=asked.digest, offset=have)
            call = server.GetBundle(request)
            try:
                async for part in call:
                    if part.offset != have or have + len(part.data) > asked.bundle_bytes:
                        raise WireError(f"a part of a bundle at {part.offset}, not {have}")
                    await asyncio.to_thread(file.write, part.data)
                    have += len(part.data)
                    self._attempt = 0
                    if self._asked != asked:
                        return  # it is not asked for any more
            finally:
                call.cancel()
        if have < asked.bundle_bytes:
            raise WireError(f"a bundle ended after {have} of {asked.bundle_bytes} bytes")
        await asyncio.to_thread(self._files.unpack, asked, self._public_key)
        log.info("bundle_fetched", bundle=asked.version, bytes=have)

    def _refuse(self, asked: AgentAsked, reason: str, problem: str) -> None:
        self.refused += 1
        self._problem = f"refused it: {problem}"
        self._events.emit(
            device_pb2.SEVERITY_ERROR,
            "bundle_refused",
            f"bundle {asked.version}: {problem}; the agent that runs goes on",
            reason=reason,
            bundle=asked.version,
            refused=self.refused,
        )


def asked_of(message: pb.AgentDirective) -> AgentAsked:
    """Reads what is asked for."""
    bundle = message.bundle
    return AgentAsked(
        rollout_id=message.rollout_id,
        version=bundle.version[:64],
        digest=bundle.digest,
        bundle_bytes=bundle.bundle_bytes,
        bundle_digest=bundle.bundle_digest,
        reason=message.reason[:300],
        go_back=message.go_back,
    )
