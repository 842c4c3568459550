"""Asks the learner for tasks: the network's side of it, and how the control thread hears of them.

The control thread asks, and is answered when the network allows; with a task in hand it never
looks here.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import explain, explain_unknown, open_channel
from edge_agent.events import Events
from shoal.errors import ShoalError, WireError
from shoal.identity import Identity
from shoal.services import backoff
from shoal.v1 import device_pb2
from shoal.v1 import dispatcher_pb2 as pb
from shoal.v1.dispatcher_pb2_grpc import DispatcherStub

BACKOFF_BASE_S: Final = 0.25
DEADLINE_S: Final = 30.0
"""Of one call: the server holds it for most of that while no task waits."""
LONGEST_RETRY_S: Final = 60.0
UNKNOWN_AGAIN_S: Final = 60.0
"""After which a server that knows no tasks is asked again."""
MAX_KWARGS_BYTES: Final = 64 * 1024
MAX_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class Task:
    """What a device is to do.

    Attributes:
        task_id: Names it.
        name: For people.
        env_id: Empty: the device's own.
        env_kwargs: Of the environment's constructor.
        seed: None draws from the system.
        max_episodes: 0: no limit.
        max_steps: Transitions; 0: no limit.
    """

    task_id: int
    name: str
    env_id: str
    env_kwargs: dict[str, object]
    seed: int | None
    max_episodes: int
    max_steps: int

    @classmethod
    def from_pb(cls, message: pb.Task) -> Task:
        """Reads the message.

        Raises:
            WireError: The keyword arguments are too long, or no JSON object.
        """
        if len(message.env_kwargs) > MAX_KWARGS_BYTES:
            raise WireError(f"task {message.task_id}: env_kwargs has {len(message.env_kwargs)} B")
        try:
            kwargs = json.loads(message.env_kwargs or b"{}")
        except (ValueError, RecursionError) as error:
            raise WireError(f"task {message.task_id}: env_kwargs is no JSON: {error}") from error
        if not isinstance(kwargs, dict):
            raise WireError(f"task {message.task_id}: env_kwargs is no JSON object")
        return cls(
            task_id=message.task_id,
            name=message.name,
            env_id=message.env_id,
            env_kwargs=kwargs,
            seed=message.seed if message.HasField("seed") else None,
            max_episodes=message.max_episodes,
            max_steps=message.max_steps,
        )


@dataclass(frozen=True, slots=True)
class Left:
    """A task that a device leaves, and what it made of it.

    Attributes:
        failed: Why it cannot be done; empty: it is done.
    """

    task_id: int
    failed: str = ""
    episodes: int = 0
    steps: int = 0
    return_mean: float = 0.0


class Dispatch:
    """Carries one question at a time to the learner, and its answer back.

    dispatch = Dispatch(config, identity, events, fleet="pond", run_id=run_id)
    await dispatch.serve()              # on the loop, until cancelled
    dispatch.ask(None)                  # in the control thread
    task = dispatch.take(0.25)
    """

    def __init__(
        self,
        config: ServerConfig,
        identity: Identity,
        events: Events,
        *,
        fleet: str,
        run_id: bytes,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects nothing yet.

        Args:
            config: The learner's gRPC endpoint.
            identity: The device.
            events: Where trouble is told.
            fleet: The device's fleet.
            run_id: The present run, 16 bytes.
            rng: Of the backoff's jitter.
            clock: Monotonic, seconds.
        """
        self._config = config
        self._identity = identity
        self._events = events
        self._fleet = fleet
        self._run_id = run_id
        self._rng = rng or random.Random()
        self._clock = clock
        self._lock = threading.Condition()
        self._question: Left | None = None
        self._asked = False
        self._answer: Task | None = None
        self._asked_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._trouble: str | None = None
        self.gap_ms = 0.0

    def ask(self, left: Left | None) -> None:
        """Says what is left, and asks for the next; the answer to an earlier question is void."""
        with self._lock:
            self._question, self._asked, self._answer = left, True, None
            self._asked_s = self._clock()
            loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    def take(self, timeout_s: float) -> Task | None:
        """The task that was answered, once; None when there is none by then.

        `gap_ms` is how long the answer took.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._answer is not None, timeout_s)
            task, self._answer = self._answer, None
            if task is not None:
                self.gap_ms = 1000 * (self._clock() - self._asked_s)
            return task

    async def serve(self) -> None:
        """Asks whenever it is wanted; ends only by being cancelled."""
        wake = asyncio.Event()
        with self._lock:
            self._loop, self._wake = asyncio.get_running_loop(), wake
            if self._asked:
                wake.set()
        attempt = 0
        while True:
            try:
                async with open_channel(self._config, self._identity) as channel:
                    server = DispatcherStub(channel)
                    while True:
                        await wake.wait()
                        wake.clear()
                        await self._carry(server)
                        attempt, self._trouble = 0, None
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    where = f"{self._config.host}:{self._config.port}"
                    self._tell_trouble(explain_unknown(error, where, "tasks"))
                    await asyncio.sleep(UNKNOWN_AGAIN_S)
                else:
                    self._tell_trouble(explain(error))
            except ShoalError as error:
                self._tell_trouble(str(error))
            wake.set()  # the question still stands
            cap_s = self._config.backoff_cap_s
            await asyncio.sleep(backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=cap_s, rng=self._rng))
            attempt += 1

    async def _carry(self, server: DispatcherStub) -> None:
        """Asks until there is a task."""
        while True:
            with self._lock:
                if not self._asked:
                    return
                question = self._question
            response = await server.NextTask(self._request(question), timeout=DEADLINE_S)
            task = Task.from_pb(response.task) if response.has_task else None
            with self._lock:
                if self._question is not question:
                    continue  # the control thread asked anew meanwhile
                self._question = None  # what it left is settled
                if task is not None:
                    self._asked, self._answer = False, task
                    self._lock.notify_all()
                    return
            await asyncio.sleep(min(max(0.0, response.retry_s), LONGEST_RETRY_S))

    def _request(self, left: Left | None) -> pb.NextTaskRequest:
        request = pb.NextTaskRequest(
            fleet=self._fleet, device_id=self._identity.name, run_id=self._run_id
        )
        if left is not None:
            request.finished_task_id = left.task_id
            request.failed = bool(left.failed)
            request.reason = left.failed[:MAX_REASON]
            request.episodes, request.steps = left.episodes, left.steps
            request.return_mean = left.return_mean
        return request

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble, not at every attempt."""
        if message != self._trouble:
            self._trouble = message
            self._events.emit(
                device_pb2.SEVERITY_WARNING,
                "dispatcher_lost",
                f"dispatcher {self._config.host}:{self._config.port}: {message}; a task in hand "
                "goes on",
            )
