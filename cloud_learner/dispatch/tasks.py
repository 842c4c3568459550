"""The queue of tasks: who works on what, what comes next, and what is given up. Pure rules.

A task is handed to one device at a time, as a lease to one run of it. It ends when that run says
that it is done or cannot be done. When the device is lost, its run is replaced, or the lease gets
too old, the task is handed out again, first of all that wait. So a task may be begun more than
once, and it counts as done once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """What became of a task."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


ENDED = (State.DONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """An environment, and for how long a device steps it.

    Attributes:
        name: For people; tasks of one name differ in seed and repetition.
        env_id: A gymnasium id or `module:attr`; empty: the device's own.
        env_kwargs: JSON object, keys sorted.
        seed: Of the environments; None draws from the device's system.
        max_episodes: 0: no limit.
        max_steps: Transitions; 0: no limit.
        stage: Tasks of a higher stage wait until this one is passed.
        repetition: Counts tasks that are alike otherwise.
        pass_return: Mean return that tasks of this name must reach before the next stage opens;
            None: it is enough that they ended.
    """

    name: str
    env_id: str = ""
    env_kwargs: str = "{}"
    seed: int | None = None
    max_episodes: int = 0
    max_steps: int = 0
    stage: int = 0
    repetition: int = 0
    pass_return: float | None = None

    @property
    def key(self) -> str:
        """Names what is to be done; the threshold may change without its being another task."""
        what = {name: value for name, value in asdict(self).items() if name != "pass_return"}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Holder:
    """One run of one device."""

    device_id: str
    run_id: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """What a device made of a task.

    Attributes:
        episodes: That ended.
        steps: Transitions.
        return_mean: Of those episodes.
    """

    episodes: int = 0
    steps: int = 0
    return_mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """A task and what became of it so far.

    Attributes:
        task_id: Unique within a learner's state directory, from 1.
        holder: Who has it, or had it last.
        attempts: How often it was handed out.
        failures: How often a device said that it cannot be done.
        losses: How often a device was lost with it.
        result: Of the attempt that finished it.
        seconds: That attempt took.
        reason: Why it failed last.
        since_s: When its state changed, monotonic.
    """

    task_id: int
    spec: TaskSpec
    state: State = State.WAITING
    holder: Holder | None = None
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    result: Result = Result()
    seconds: float = 0.0
    reason: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a task is taken back or given up.

    Attributes:
        lease_s: Seconds after which it is handed out again though its device is there; 0: never.
        failures: Times that a device may say it cannot be done.
        losses: Devices that may be lost with it.
    """

    lease_s: float = 0.0
    failures: int = 3
    losses: int = 10


class TaskQueue:
    """Hands tasks out in the order of their ids, stage after stage. Knows no clock and no disk.

    queue = TaskQueue(tasks, Limits())
    task = queue.next(Holder("pi-1", run_id), now_s)
    queue.finish(Holder("pi-1", run_id), task.task_id, Result(50, 9500, 190.5), now_s)
    store.save(queue.changed()); queue.note_saved(...)
    """

    def __init__(self, tasks: Iterable[Task], limits: Limits) -> None:
        """Takes over what is known; leases go on."""
        self._limits = limits
        self._tasks = {task.task_id: task for task in sorted(tasks, key=lambda each: each.task_id)}
        self._changed: dict[int, Task] = {}
        self._held = {t.holder: t.task_id for t in self._tasks.values() if _is_held(t)}
        self._waiting: dict[int, deque[int]] = defaultdict(deque)
        self._stages: dict[int, list[int]] = defaultdict(list)
        self._unended: Counter[int] = Counter()
        self._behind: set[int] = set()
        for task in self._tasks.values():
            self._stages[task.spec.stage].append(task.task_id)
            self._unended[task.spec.stage] += task.state not in ENDED
            if task.state is State.WAITING:
                self._waiting[task.spec.stage].append(task.task_id)

    @property
    def tasks(self) -> Sequence[Task]:
        """All of them, in the order of their ids."""
        return tuple(self._tasks.values())

    @property
    def open_stage(self) -> int | None:
        """The stage that tasks come from now; None when every stage is passed."""
        return next((stage for stage in sorted(self._stages) if not self._passed(stage)), None)

    def held_by(self, device_id: str) -> Task | None:
        """What a device works on."""
        for holder, task_id in self._held.items():
            if holder is not None and holder.device_id == device_id:
                return self._tasks[task_id]
        return None

    def next(self, holder: Holder, now_s: float) -> Task | None:
        """The next task for a run; the one it has already, as an answer may have been lost.

        Args:
            holder: Who asks.
            now_s: Monotonic.
        """
        if holder in self._held:
            return self._tasks[self._held[holder]]
        stage = self.open_stage
        if stage is None:
            return None
        if not self._waiting[stage] and not self._begin_again(stage, now_s):
            return None
        task = self._tasks[self._waiting[stage].popleft()]
        self._held[holder] = task.task_id
        return self._put(
            replace(
                task,
                state=State.RUNNING,
                holder=holder,
                attempts=task.attempts + 1,
                since_s=now_s,
            )
        )

    def finish(self, holder: Holder, task_id: int, result: Result, now_s: float) -> bool:
        """Counts a task as done; False when that run does not hold it (any more)."""
        task = self._leave(holder, task_id)
        if task is None:
            return False
        seconds = max(0.0, now_s - task.since_s)
        self._put(replace(task, state=State.DONE, result=result, seconds=seconds, since_s=now_s))
        return True

    def fail(self, holder: Holder, task_id: int, reason: str, now_s: float) -> bool:
        """Counts a failure: it is tried again, or given up; False as for `finish`."""
        task = self._leave(holder, task_id)
        if task is None:
            return False
        failures = task.failures + 1
        self._again_or_never(
            replace(task, failures=failures, reason=reason, since_s=now_s),
            given_up=failures >= self._limits.failures,
        )
        return True

    def release(self, is_gone: Callable[[Holder], bool], now_s: float) -> list[Task]:
        """Takes tasks back from who is gone or had one too long.

        Args:
            is_gone: Whether a run of a device is known to have ended.
            now_s: Monotonic.

        Returns:
            What was taken back, as it is now.
        """
        taken: list[Task] = []
        for holder, task_id in list(self._held.items()):
            task = self._tasks[task_id]
            late = 0.0 < self._limits.lease_s <= now_s - task.since_s
            if holder is None or not (late or is_gone(holder)):
                continue
            del self._held[holder]
            losses = task.losses + 1
            why = f"{holder.device_id} was lost"
            if late:
                why = f"{holder.device_id} had it for {self._limits.lease_s:g} s"
            again = replace(task, losses=losses, reason=why, since_s=now_s)
            taken.append(self._again_or_never(again, given_up=losses >= self._limits.losses))
        return taken

    def changed(self) -> Sequence[Task]:
        """What differs from what was saved."""
        return tuple(self._changed.values())

    def note_saved(self, tasks: Iterable[Task]) -> None:
        """Notes that these are durable; what changed meanwhile still is not."""
        for task in tasks:
            if self._changed.get(task.task_id) is task:
                del self._changed[task.task_id]

    def _leave(self, holder: Holder, task_id: int) -> Task | None:
        if self._held.get(holder) != task_id:
            return None
        del self._held[holder]
        return self._tasks[task_id]

    def _again_or_never(self, task: Task, *, given_up: bool) -> Task:
        if given_up:
            return self._put(replace(task, state=State.FAILED))
        self._waiting[task.spec.stage].appendleft(task.task_id)
        return self._put(replace(task, state=State.WAITING))

    def _put(self, task: Task) -> Task:
        before = self._tasks[task.task_id].state
        self._unended[task.spec.stage] += (task.state not in ENDED) - (before not in ENDED)
        self._tasks[task.task_id] = self._changed[task.task_id] = task
        return task

    def _passed(self, stage: int) -> bool:
        """Whether all of a stage ended, and each name with a threshold reached it."""
        if stage not in self._behind and not self._unended[stage] and not _below(self._of(stage)):
            self._behind.add(stage)  # for good: none of its tasks is handed out again
        return stage in self._behind

    def _of(self, stage: int) -> list[Task]:
        return [self._tasks[task_id] for task_id in self._stages[stage]]

    def _begin_again(self, stage: int, now_s: float) -> bool:
        """Has what did not reach its threshold wait once more; whether there is any."""
        if self._unended[stage]:
            return False
        tasks = self._of(stage)
        below = _below(tasks)
        for task in tasks:
            if task.spec.name in below and task.state is State.DONE:
                self._put(replace(task, state=State.WAITING, since_s=now_s))
                self._waiting[stage].append(task.task_id)
        return bool(self._waiting[stage])


def mean_return(tasks: Iterable[Task]) -> float | None:
    """The mean return over all episodes of those that are done; None without any."""
    results = [task.result for task in tasks if task.state is State.DONE]
    episodes = sum(result.episodes for result in results)
    if not episodes:
        return None
    return sum(result.return_mean * result.episodes for result in results) / episodes


def _below(tasks: Sequence[Task]) -> set[str]:
    """Names whose tasks did not reach their threshold."""
    found: set[str] = set()
    for name in {task.spec.name for task in tasks if task.spec.pass_return is not None}:
        alike = [task for task in tasks if task.spec.name == name]
        threshold = max(task.spec.pass_return or 0.0 for task in alike)
        mean = mean_return(alike)
        if mean is None or mean < threshold:
            found.add(name)
    return found


def _is_held(task: Task) -> bool:
    return task.state is State.RUNNING and task.holder is not None
