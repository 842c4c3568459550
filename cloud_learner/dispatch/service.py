"""Hands tasks to devices over gRPC: `shoal.v1.Dispatcher`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

import grpc
import grpc.aio

from cloud_learner.dispatch.store import TaskStore
from cloud_learner.dispatch.tasks import Holder, Result, State, Task, TaskQueue
from cloud_learner.downlink.callers import OPERATORS
from cloud_learner.fleet.teller import Teller
from cloud_learner.serving.grpc_server import (
    Context,
    peer_name,
    refuse,
    require_device,
    require_fleet,
)
from shoal.errors import TaskStoreError
from shoal.logs import get_logger
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import device_pb2
from shoal.v1 import dispatcher_pb2 as pb
from shoal.v1 import dispatcher_pb2_grpc as rpc

HOLD_S: Final = 20.0
"""How long a call is held while no task waits; less when the caller's deadline is nearer."""
MARGIN_S: Final = 1.0
"""How long before that deadline it is answered."""
RETRY_S: Final = 0.5
"""After which a device may ask again when there was none."""
LOOK_S: Final = 0.5
"""Between two looks for tasks of devices that were lost."""
MAX_REASON: Final = 300
_STATES: Final = {
    State.WAITING: pb.TASK_STATE_WAITING,
    State.RUNNING: pb.TASK_STATE_RUNNING,
    State.DONE: pb.TASK_STATE_DONE,
    State.FAILED: pb.TASK_STATE_FAILED,
}
_log = get_logger("dispatch")


class Devices(Teller, Protocol):
    """What is asked of the fleet; `cloud_learner.fleet.fleet.Fleet` answers."""

    def is_gone(self, device_id: str, run_id: bytes) -> bool:
        """Whether that run is known to have ended, or fell silent."""

    def steps_per_s(self, device_id: str) -> float:
        """What a device makes, as last reported."""


class DispatchService(rpc.DispatcherServicer):
    """Hands out tasks; what it answers is on disk before. Used from the event loop.

    service = DispatchService(queue, store, fleet_view, fleet="reef")
    await service.serve()       # takes tasks of lost devices back, until cancelled
    """

    def __init__(
        self,
        queue: TaskQueue,
        store: TaskStore,
        devices: Devices,
        *,
        fleet: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Joins queue, disk and fleet.

        Args:
            queue: The tasks.
            store: Where they are kept.
            devices: Who is there.
            fleet: The fleet served.
            clock: Monotonic seconds.
        """
        self._queue = queue
        self._store = store
        self._devices = devices
        self._fleet = fleet
        self._clock = clock
        self._news = asyncio.Condition()
        self._saving = asyncio.Lock()
        self._stopping = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_DispatcherServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """Has held calls answered soon: nobody waits for a learner that stops."""
        self._stopping = True

    def task_of(self, device_id: str) -> str:
        """What a device works on, for people; empty: nothing."""
        task = self._queue.held_by(device_id)
        return "" if task is None else f"{task.spec.name} (task {task.task_id})"

    async def serve(self) -> None:
        """Takes back what lost devices held, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Takes back, once."""
        taken = self._queue.release(
            lambda holder: self._devices.is_gone(holder.device_id, holder.run_id), self._clock()
        )
        for task in taken:
            self._tell(task, "task_taken_back")
        if self._queue.changed():  # of this look, or what the disk refused before
            try:
                await self._save()
            except TaskStoreError as error:
                _log.warning("tasks_not_saved", problem=str(error))
        if taken or self._stopping:
            await self._notify()

    # -------------------------------------------------------------------------------- the calls

    async def NextTask(  # noqa: N802 - the name in the proto
        self, request: pb.NextTaskRequest, context: Context
    ) -> pb.NextTaskResponse:
        """Settles what the device leaves, and hands it the next."""
        holder = await self._holder_of(request, context)
        if request.finished_task_id:
            await self._settle(holder, request)
        deadline_s = self._clock() + self._hold_s(context)
        while True:
            task = self._queue.next(holder, self._clock())
            try:
                await self._save()
            except TaskStoreError as error:
                await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
            if task is not None:
                return pb.NextTaskResponse(has_task=True, task=_task_pb(task))
            left_s = deadline_s - self._clock()
            if left_s <= 0 or self._stopping:
                return pb.NextTaskResponse(has_task=False, retry_s=RETRY_S)
            await self._wait(left_s)

    async def ListTasks(  # noqa: N802 - the name in the proto
        self, request: pb.ListTasksRequest, context: Context
    ) -> pb.ListTasksResponse:
        """Every task."""
        if peer_name(context) not in OPERATORS:
            await refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate is of {peer_name(context)!r}: only an operator's may list tasks",
            )
        await require_fleet(context, request.fleet, self._fleet)
        return pb.ListTasksResponse(tasks=[self._info(task) for task in self._queue.tasks])

    # ------------------------------------------------------------------------------------ parts

    async def _holder_of(self, request: pb.NextTaskRequest, context: Context) -> Holder:
        name = await require_device(context, request.device_id, request.fleet, self._fleet)
        if len(request.run_id) != RUN_ID_BYTES or not math.isfinite(request.return_mean):
            await refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"run_id must be {RUN_ID_BYTES} bytes and return_mean a number: update the agent",
            )
        return Holder(name, request.run_id)

    async def _settle(self, holder: Holder, request: pb.NextTaskRequest) -> None:
        task_id, now_s = request.finished_task_id, self._clock()
        if request.failed:
            counted = self._queue.fail(holder, task_id, request.reason[:MAX_REASON], now_s)
        else:
            result = Result(request.episodes, request.steps, request.return_mean)
            counted = self._queue.finish(holder, task_id, result, now_s)
        if not counted:  # told again, or handed to another meanwhile
            _log.info("task_not_held", device_id=holder.device_id, task_id=task_id)
            return
        if request.failed:
            known = next((t for t in self._queue.changed() if t.task_id == task_id), None)
            if known is not None:
                self._tell(known, "task_failed")
        await self._notify()

    def _tell(self, task: Task, name: str) -> None:
        given_up = task.state is State.FAILED
        device_id = task.holder.device_id if task.holder is not None else ""
        what = "given up" if given_up else "handed out again"
        self._devices.record(
            device_id,
            name,
            f"task {task.task_id} ({task.spec.name}) is {what}: {task.reason}",
            severity=device_pb2.SEVERITY_ERROR if given_up else device_pb2.SEVERITY_WARNING,
            task_id=str(task.task_id),
        )

    async def _save(self) -> None:
        """What changed is durable when this returns; what changes meanwhile is saved by others."""
        async with self._saving:
            changed = self._queue.changed()
            await asyncio.to_thread(self._store.save, changed)
            self._queue.note_saved(changed)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait()
        except TimeoutError:
            return

    def _hold_s(self, context: Context) -> float:
        # None, whatever its stub says, for a caller without a deadline.
        left: float | None = context.time_remaining()
        return HOLD_S if left is None else max(0.0, min(HOLD_S, left - MARGIN_S))

    def _info(self, task: Task) -> pb.TaskInfo:
        state = _STATES[task.state]
        open_stage = self._queue.open_stage
        if task.state is State.WAITING and open_stage is not None and task.spec.stage > open_stage:
            state = pb.TASK_STATE_CLOSED
        device_id = task.holder.device_id if task.holder is not None else ""
        rate = 0.0
        if task.state is State.RUNNING:
            rate = self._devices.steps_per_s(device_id)
        elif task.seconds > 0.0:
            rate = task.result.steps / task.seconds
        return pb.TaskInfo(
            task=_task_pb(task),
            state=state,
            stage=task.spec.stage,
            device_id=device_id,
            attempts=task.attempts,
            failures=task.failures,
            losses=task.losses,
            episodes=task.result.episodes,
            steps=task.result.steps,
            return_mean=task.result.return_mean,
            steps_per_s=rate,
            reason=task.reason,
            age_s=max(0.0, self._clock() - task.since_s),
        )


def _task_pb(task: Task) -> pb.Task:
    spec = task.spec
    return pb.Task(
        task_id=task.task_id,
        env_id=spec.env_id,
        env_kwargs=spec.env_kwargs.encode(),
        seed=spec.seed,
        max_episodes=spec.max_episodes,
        max_steps=spec.max_steps,
        name=spec.name,
    )
