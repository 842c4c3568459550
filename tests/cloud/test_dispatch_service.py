"""Tasks over real gRPC with mutual TLS, and the device's own client on the other side."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from dispatch_cloud import DEADLINE_S, FLEET, RUN, TASKS, cloud, taken
from sim import until

from cloud_learner.serving.grpc_server import GrpcServer
from edge_agent.config import ServerConfig
from edge_agent.dispatch.dispatch import Dispatch, Left, Task
from edge_agent.events import Events
from shoal.errors import WireError
from shoal.identity import Identity
from shoal.v1 import dispatcher_pb2 as pb


async def answered(*desks: Dispatch) -> Task:
    """What the first of them is answered."""
    found: list[Task] = []

    def has_come() -> bool:
        found.extend(task for desk in desks if (task := desk.take(0)) is not None)
        return bool(found)

    await until(has_come)
    return found[0]


def request(name: str, **values: object) -> pb.NextTaskRequest:
    given = {"fleet": FLEET, "device_id": name, "run_id": RUN} | values
    return pb.NextTaskRequest(**given)  # type: ignore[arg-type]


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))  # type: ignore[arg-type]


def test_an_idle_device_gets_the_next_task_and_each_is_done_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it, it.device("pi-1") as one, it.device("pi-2") as two:
            first, second = await taken(one), await taken(two)
            assert [(t.task_id, t.name, t.seed, t.max_episodes) for t in (first, second)] == [
                (1, "pole", 0, 5),
                (2, "pole", 1, 5),
            ]
            assert it.service.task_of("pi-1") == "pole (task 1)"
            # The stage after is closed until both are done: `one` is held until then.
            one.ask(Left(1, episodes=5, steps=100, return_mean=20.0))
            assert await asyncio.to_thread(one.take, 0.05) is None
            two.ask(Left(2, episodes=5, steps=80, return_mean=16.0))
            task = await answered(one, two)
            assert (task.task_id, task.name, task.max_steps, task.seed) == (3, "late", 9, None)
            async with it.stub("operator") as stub:
                listed = await stub.ListTasks(pb.ListTasksRequest(fleet=FLEET))
            assert [info.state for info in listed.tasks] == [
                pb.TASK_STATE_DONE,
                pb.TASK_STATE_DONE,
                pb.TASK_STATE_RUNNING,
            ]
            assert (listed.tasks[0].steps, listed.tasks[0].return_mean) == (100, 20.0)
            assert listed.tasks[2].steps_per_s == 123.0

    run(scenario())


def test_a_task_of_a_lost_device_goes_to_one_that_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            cloud(tmp_path, TASKS[:1]) as it,
            it.device("pi-1") as one,
            it.device("pi-2") as two,
            it.device("pi-3") as three,
        ):
            assert [(await taken(desk)).task_id for desk in (one, two)] == [1, 2]
            three.ask(None)
            assert await asyncio.to_thread(three.take, 0.05) is None
            it.devices.gone.add("pi-1")
            await it.service.look()
            task = await answered(three)
            assert task.task_id == 1
            assert "pi-1 task_taken_back" in it.devices.events[0]

    run(scenario())


def test_what_cannot_be_done_is_tried_again_given_up_and_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path, TASKS[:1]) as it, it.device("pi-1") as one:
            assert (await taken(one)).task_id == 1
            assert (await taken(one, Left(1, failed="no rail"))).task_id == 1
            assert (await taken(one, Left(1, failed="no rail"))).task_id == 2
            assert "handed out again: no rail" in it.devices.events[0]
            assert "given up: no rail" in it.devices.events[1]

    run(scenario())


def test_a_learner_that_restarts_hands_out_what_was_left_and_hears_of_what_was_done(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it, it.device("pi-1") as one:
            assert (await taken(one)).task_id == 1
        async with cloud(tmp_path) as it, it.device("pi-2") as two, it.device("pi-1") as one:
            assert (await taken(two)).task_id == 2
            one.ask(Left(1, episodes=5, steps=100, return_mean=20.0))
            two.ask(Left(2, episodes=5, steps=100, return_mean=20.0))
            task = await answered(one, two)
            assert task.task_id == 3

    run(scenario())


@pytest.mark.parametrize(
    ("caller", "asked", "code"),
    [
        ("pi-2", request("pi-1"), grpc.StatusCode.PERMISSION_DENIED),
        ("operator", request("operator"), grpc.StatusCode.PERMISSION_DENIED),
        ("pi-1", request("pi-1", fleet="other"), grpc.StatusCode.FAILED_PRECONDITION),
        ("pi-1", request("pi-1", run_id=b"short"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            "pi-1",
            request("pi-1", finished_task_id=1, return_mean=float("nan")),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_only_the_device_itself_may_ask(
    caller: str, asked: pb.NextTaskRequest, code: grpc.StatusCode, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it, it.stub(caller) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.NextTask(asked, timeout=DEADLINE_S)
            assert caught.value.code() is code

    run(scenario())


def test_only_operators_may_list_tasks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it, it.stub("pi-1") as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListTasks(pb.ListTasksRequest(fleet=FLEET), timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

    run(scenario())


def test_a_device_without_a_learner_asks_on_and_is_answered_when_there_is_one(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it:
            config = ServerConfig("localhost", 1, backoff_cap_s=0.01)
            events = Events("pi-1", RUN, clock=lambda: 0.0)
            desk = Dispatch(config, it.identity("pi-1"), events, fleet=FLEET, run_id=RUN)
            serving = asyncio.ensure_future(desk.serve())
            desk.ask(None)
            told: list[str] = []

            def is_told() -> bool:
                told.extend(event.name for event in events.take())
                return bool(told)

            await until(is_told)
            assert told == ["dispatcher_lost"]
            assert desk.take(0) is None
            desk._config = ServerConfig("localhost", it.port, backoff_cap_s=0.01)
            task = await answered(desk)
            assert task.task_id == 1
            assert desk.gap_ms > 0
            serving.cancel()

    run(scenario())


def test_a_server_that_knows_no_tasks_is_named_with_what_to_do_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(tmp_path) as it:
            learner = Identity(it.pki.directory / "identities" / "learner", "learner", None)
            async with GrpcServer("127.0.0.1", 0, learner, []) as older:
                config = ServerConfig("localhost", older.port, backoff_cap_s=0.01)
                events = Events("pi-1", RUN, clock=lambda: 0.0)
                desk = Dispatch(config, it.identity("pi-1"), events, fleet=FLEET, run_id=RUN)
                serving = asyncio.ensure_future(desk.serve())
                desk.ask(None)
                told: list[str] = []

                def is_told() -> bool:
                    told.extend(event.message for event in events.take())
                    return bool(told)

                await until(is_told)
                assert f"localhost:{older.port} knows no tasks: update it" in told[0]
                serving.cancel()

    run(scenario())


@pytest.mark.parametrize("kwargs", [b"[1]", b"{", b"\xff", b"[" * 60_000, b" " * 70_000])
def test_a_task_whose_arguments_are_no_json_object_is_refused(kwargs: bytes) -> None:
    with pytest.raises(WireError, match="task 7"):
        Task.from_pb(pb.Task(task_id=7, env_kwargs=kwargs))
