"""The queue of tasks: nobody is idle while one waits, none is lost, each counts as done once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_learner.dispatch.tasks import (
    Holder,
    Limits,
    Result,
    State,
    Task,
    TaskQueue,
    TaskSpec,
    mean_return,
)

ONE, TWO = Holder("pi-1", bytes(16)), Holder("pi-2", bytes(16))


def queue(*specs: TaskSpec, limits: Limits | None = None) -> TaskQueue:
    tasks = [Task(n + 1, spec) for n, spec in enumerate(specs)]
    return TaskQueue(tasks, limits or Limits())


def lessons(count: int, *, stage: int = 0, pass_return: float | None = None) -> list[TaskSpec]:
    return [
        TaskSpec(f"lesson-{stage}", seed=n, max_episodes=5, stage=stage, pass_return=pass_return)
        for n in range(count)
    ]


def next_id(tasks: TaskQueue, holder: Holder, now_s: float = 0.0) -> int | None:
    task = tasks.next(holder, now_s)
    return None if task is None else task.task_id


def test_tasks_are_handed_out_in_order_and_each_to_one_device() -> None:
    tasks = queue(*lessons(2))
    assert next_id(tasks, ONE) == 1
    assert next_id(tasks, TWO) == 2
    assert tasks.finish(ONE, 1, Result(5, 100, 20.0), 3.0)
    assert next_id(tasks, ONE) is None
    held = tasks.held_by("pi-2")
    assert held is not None
    assert held.task_id == 2
    assert tasks.held_by("pi-1") is None


def test_a_device_whose_answer_was_lost_gets_the_same_task_again() -> None:
    tasks = queue(*lessons(3))
    assert [next_id(tasks, ONE) for _ in range(3)] == [1, 1, 1]
    assert tasks.tasks[0].attempts == 1


def test_only_who_holds_a_task_may_end_it_and_only_once() -> None:
    tasks = queue(*lessons(2))
    next_id(tasks, ONE)
    assert not tasks.finish(TWO, 1, Result(), 1.0)
    assert tasks.finish(ONE, 1, Result(5, 100, 20.0), 1.0)
    assert not tasks.finish(ONE, 1, Result(9, 900, 90.0), 2.0)
    assert not tasks.fail(ONE, 1, "late", 2.0)
    assert tasks.tasks[0].result == Result(5, 100, 20.0)


def test_a_task_of_a_lost_device_is_handed_out_next() -> None:
    tasks = queue(*lessons(3))
    next_id(tasks, ONE)
    (taken,) = tasks.release(lambda holder: holder == ONE, 9.0)
    assert (taken.task_id, taken.state, taken.losses) == (1, State.WAITING, 1)
    assert "pi-1 was lost" in taken.reason
    assert next_id(tasks, TWO) == 1
    assert not tasks.finish(ONE, 1, Result(), 10.0)
    assert not tasks.release(lambda holder: holder == ONE, 11.0)


def test_a_device_that_started_anew_holds_nothing_of_its_last_run() -> None:
    tasks = queue(*lessons(2))
    next_id(tasks, ONE)
    again = replace(ONE, run_id=bytes([1]) * 16)
    assert next_id(tasks, again) == 2
    tasks.release(lambda holder: holder == ONE, 1.0)
    assert next_id(tasks, TWO) == 1


def test_a_lease_that_is_too_old_ends_though_its_device_is_there() -> None:
    tasks = queue(*lessons(1), limits=Limits(lease_s=60.0))
    next_id(tasks, ONE)
    assert not tasks.release(lambda _: False, 59.0)
    (taken,) = tasks.release(lambda _: False, 60.0)
    assert "had it for 60 s" in taken.reason


def test_what_cannot_be_done_is_tried_so_often_and_then_given_up() -> None:
    tasks = queue(*lessons(2), limits=Limits(failures=2))
    for expected in (State.WAITING, State.FAILED):
        assert next_id(tasks, ONE) == 1
        assert tasks.fail(ONE, 1, "no rail", 1.0)
        assert tasks.tasks[0].state is expected
    assert tasks.tasks[0].reason == "no rail"
    assert next_id(tasks, ONE) == 2


def test_a_task_that_takes_devices_with_it_is_given_up() -> None:
    tasks = queue(*lessons(1), limits=Limits(losses=2))
    for expected in (State.WAITING, State.FAILED):
        next_id(tasks, ONE)
        tasks.release(lambda _: True, 1.0)
        assert tasks.tasks[0].state is expected
    assert tasks.open_stage is None


def test_a_stage_opens_when_all_of_the_one_before_ended() -> None:
    tasks = queue(*lessons(2), *lessons(1, stage=3))
    assert tasks.open_stage == 0
    assert [next_id(tasks, ONE), next_id(tasks, TWO)] == [1, 2]
    assert next_id(tasks, Holder("pi-3", bytes(16))) is None
    tasks.finish(ONE, 1, Result(5, 9, 1.0), 1.0)
    assert next_id(tasks, ONE) is None
    tasks.finish(TWO, 2, Result(5, 9, 1.0), 1.0)
    assert (tasks.open_stage, next_id(tasks, ONE)) == (3, 3)


def test_a_stage_is_gone_through_again_until_its_mean_return_is_reached() -> None:
    tasks = queue(*lessons(2, pass_return=100.0), *lessons(1, stage=1))
    for returns in ((50.0, 120.0), (90.0, 110.0)):
        assert tasks.open_stage == 0
        for task_id, mean in zip((1, 2), returns, strict=True):
            assert next_id(tasks, ONE) == task_id
            tasks.finish(ONE, task_id, Result(5, 9, mean), 1.0)
    assert next_id(tasks, ONE) == 3
    assert tasks.tasks[0].attempts == 2


def test_only_the_lessons_that_were_not_passed_are_repeated() -> None:
    hard = TaskSpec("hard", max_episodes=5, pass_return=100.0)
    easy = TaskSpec("easy", max_episodes=5, pass_return=10.0)
    tasks = queue(hard, easy)
    for task_id in (1, 2):
        next_id(tasks, ONE)
        tasks.finish(ONE, task_id, Result(5, 9, 50.0), 1.0)
    assert next_id(tasks, ONE) == 1
    assert next_id(tasks, TWO) is None


def test_the_mean_is_over_episodes_not_over_tasks() -> None:
    spec = TaskSpec("a", max_episodes=1)
    done = [Task(n, spec, State.DONE, result=Result(n, 0, 100.0 * n)) for n in (1, 3)]
    assert mean_return(done) == pytest.approx((100 + 3 * 300) / 4)
    assert mean_return([Task(1, spec)]) is None


class QueueUnderFaults(RuleBasedStateMachine):
    """Devices come, vanish, finish, fail and repeat themselves; the learner restarts."""

    holders = st.builds(
        lambda device, run: Holder(f"pi-{device}", bytes([run]) * 16),
        st.integers(0, 2),
        st.integers(0, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        specs = [*lessons(3), *lessons(2, stage=1)]
        self.disk = {n + 1: Task(n + 1, spec) for n, spec in enumerate(specs)}
        self.limits = Limits(failures=3, losses=4)
        self.tasks = TaskQueue(self.disk.values(), self.limits)
        self.finished: list[int] = []
        self.now_s = 0.0

    def save(self) -> None:
        changed = self.tasks.changed()
        self.disk.update({task.task_id: task for task in changed})
        self.tasks.note_saved(changed)
        assert not self.tasks.changed()

    @rule(holder=holders)
    def asks(self, holder: Holder) -> None:
        self.now_s += 1
        waiting = [t for t in self.tasks.tasks if t.state is State.WAITING]
        given = self.tasks.next(holder, self.now_s)
        if given is None:
            assert all(task.spec.stage != self.tasks.open_stage for task in waiting)
        self.save()

    @rule(holder=holders, task_id=st.integers(1, 5), failed=st.booleans())
    def leaves(self, holder: Holder, task_id: int, *, failed: bool) -> None:
        self.now_s += 1
        if failed:
            self.tasks.fail(holder, task_id, "why", self.now_s)
        elif self.tasks.finish(holder, task_id, Result(5, 9, 1.0), self.now_s):
            self.finished.append(task_id)
        self.save()

    @rule(holder=holders)
    def vanishes(self, holder: Holder) -> None:
        self.tasks.release(lambda each: each == holder, self.now_s)
        self.save()

    @rule()
    def the_learner_restarts(self) -> None:
        self.tasks = TaskQueue(self.disk.values(), self.limits)

    @invariant()
    def each_is_done_once_and_held_by_one(self) -> None:
        assert len(self.finished) == len(set(self.finished))
        done = {task.task_id for task in self.tasks.tasks if task.state is State.DONE}
        assert done == set(self.finished)
        running = [task for task in self.tasks.tasks if task.state is State.RUNNING]
        assert len({task.holder for task in running}) == len(running)
        for task in running:
            assert task.holder is not None
            assert self.tasks.next(task.holder, self.now_s) is task

    def teardown(self) -> None:
        """Whatever happened, two devices that stay bring every task to its end."""
        self.tasks.release(lambda _: True, self.now_s)
        for _ in range(20):
            for holder in (ONE, TWO):
                task = self.tasks.next(holder, self.now_s)
                if task is not None:
                    self.tasks.finish(holder, task.task_id, Result(5, 9, 1.0), self.now_s)
        assert self.tasks.open_stage is None
        assert all(task.state in (State.DONE, State.FAILED) for task in self.tasks.tasks)


QueueUnderFaults.TestCase.settings = settings(max_examples=60, deadline=None)
TestQueueUnderFaults = QueueUnderFaults.TestCase
