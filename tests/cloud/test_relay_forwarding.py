"""Rollouts and tasks of a learner's own services through a relay, over gRPC with certificates."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from brokers import free_port
from dispatch_cloud import RUN, TASKS, taken
from dispatch_cloud import cloud as dispatch_cloud
from policy_device import SECOND, cloud_of, device, rollout_of
from relay_site import FLEET, calling, relay_site
from rollout_cloud import rollout_cloud
from sim import on_loop, until

from cloud_learner.relay.channel_pool import CALLS_PER_CHANNEL, ChannelPool
from cloud_learner.relay.config import UpstreamConfig
from cloud_learner.rollout.rollout import Progress, State
from edge_agent.dispatch.dispatch import Left
from shoal.v1 import dispatcher_pb2 as tasks
from shoal.v1 import rollout_pb2 as pb
from shoal.v1.dispatcher_pb2_grpc import DispatcherStub
from shoal.v1.parameter_server_pb2 import GetPolicyRequest
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub
from shoal.v1.rollout_pb2_grpc import RolloutsStub

DEADLINE_S = 30.0


async def told(channel: grpc.aio.Channel, name: str) -> pb.Directive:
    """What a device is told first."""
    request = pb.WatchDirectiveRequest(fleet=FLEET, device_id=name, run_id=RUN)
    call = RolloutsStub(channel).WatchDirective(request, wait_for_ready=True)
    try:
        return await anext(aiter(call))
    finally:
        call.cancel()


def outcome(name: str) -> pb.ReportOutcomeRequest:
    return pb.ReportOutcomeRequest(fleet=FLEET, device_id=name, run_id=RUN, rollout_id=1)


def task_of(name: str) -> tasks.NextTaskRequest:
    return tasks.NextTaskRequest(fleet=FLEET, device_id=name, run_id=RUN)


@on_loop
async def test_a_policy_is_rolled_out_to_a_device_behind_a_relay(tmp_path: Path) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        device(replace(cloud, port=port), tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: pi.version == 4)
        pi.act(3)
        await until(lambda: rollout_of(cloud).state is State.PROMOTED)
        assert rollout_of(cloud).members["pi-1"].reason == "acted 3 episodes"


@on_loop
async def test_only_the_devices_that_are_asked_get_a_candidate_through_a_relay(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    devices.add("pi-2")
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        device(replace(cloud, port=port), tmp_path / "one") as one,
        device(replace(cloud, port=port), tmp_path / "two", "pi-2") as two,
    ):
        await until(lambda: one.version == two.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: max(one.version, two.version) == 4)
        first, other = (one, two) if one.version == 4 else (two, one)
        await until(lambda: rollout_of(cloud).count(Progress.STARTED) == 1)
        assert other.version == 3
        first.act(3)
        await until(lambda: other.version == 4)
        other.act(3)
        await until(lambda: rollout_of(cloud).state is State.PROMOTED)


@on_loop
async def test_a_device_behind_a_relay_goes_back_when_a_rollout_is_aborted(tmp_path: Path) -> None:
    place, devices = cloud_of(tmp_path, wrong=True)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        device(replace(cloud, port=port), tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: rollout_of(cloud).state is State.ABORTED)
        assert "pi-1: refused it:" in rollout_of(cloud).reason
        await until(lambda: pi.version == 5)


@on_loop
async def test_a_policy_is_rolled_out_through_a_chain_of_relays(tmp_path: Path) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "a") as first,
        relay_site(cloud.pki, first, tmp_path / "b", name="site-b") as port,
        device(replace(cloud, port=port), tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: pi.version == 4)
        pi.act(3)
        await until(lambda: rollout_of(cloud).state is State.PROMOTED)


@on_loop
async def test_a_relay_that_starts_anew_without_upstream_hands_a_candidate_to_nobody_new(
    tmp_path: Path,
) -> None:
    place, devices = cloud_of(tmp_path, wrong=False)
    async with (
        rollout_cloud(place, policies=3, devices=devices) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        device(replace(cloud, port=port), tmp_path / "pi") as pi,
    ):
        await until(lambda: pi.version == 3)
        await cloud.rollouts.start(SECOND)
        await until(lambda: pi.version == 4)
    async with (
        relay_site(cloud.pki, free_port(), tmp_path / "site") as port,
        calling(cloud.pki, "pi-2", port) as channel,
    ):
        stub = ParameterServerStub(channel)
        for asked, given in ((0, 3), (4, 4)):
            call = stub.GetPolicy(GetPolicyRequest(fleet=FLEET, version=asked), wait_for_ready=True)
            assert (await anext(aiter(call))).version == given


@on_loop
async def test_tasks_are_handed_out_through_a_relay(tmp_path: Path) -> None:
    async with (
        dispatch_cloud(tmp_path, TASKS[:1]) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        replace(cloud, port=port).device("pi-1") as desk,
    ):
        assert (await taken(desk)).task_id == 1
        assert (await taken(desk, Left(1, episodes=5, steps=9, return_mean=2.0))).task_id == 2
        assert cloud.service.task_of("pi-1") == "pole (task 2)"


@on_loop
async def test_no_device_speaks_for_another_through_a_relay(tmp_path: Path) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        await refused_for_another(channel, "pi-2")


@on_loop
async def test_at_the_learner_only_a_relay_speaks_for_others(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        async with calling(cloud.pki, "pi-1", cloud.port) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
                await RolloutsStub(channel).ReportOutcome(outcome("pi-2"), wait_for_ready=True)
        async with calling(cloud.pki, "site-b", cloud.port) as channel:
            assert await told(channel, "pi-2") == pb.Directive()


@on_loop
async def test_at_the_dispatcher_only_a_relay_asks_for_others(tmp_path: Path) -> None:
    async with dispatch_cloud(tmp_path, TASKS[:1]) as cloud:
        async with calling(cloud.pki, "pi-1", cloud.port) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
                await DispatcherStub(channel).NextTask(task_of("pi-2"), timeout=DEADLINE_S)
        async with calling(cloud.pki, "site-b", cloud.port) as channel:
            given = await DispatcherStub(channel).NextTask(task_of("pi-2"), timeout=DEADLINE_S)
        assert given.has_task
        assert cloud.service.task_of("pi-2") == "pole (task 1)"


async def refused_for_another(channel: grpc.aio.Channel, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
        await RolloutsStub(channel).ReportOutcome(outcome(name), wait_for_ready=True)
    with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
        await told(channel, name)
    with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
        await DispatcherStub(channel).NextTask(task_of(name))


@on_loop
async def test_while_upstream_is_away_a_relay_says_so(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        pki = cloud.pki
    async with (
        relay_site(pki, free_port(), tmp_path / "site") as port,
        calling(pki, "pi-1", port) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=r"cannot reach .* tasks wait") as caught:
            await DispatcherStub(channel).NextTask(task_of("pi-1"), wait_for_ready=True)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError, match=r"cannot reach .* rollouts wait"):
            await told(channel, "pi-1")
        with pytest.raises(grpc.aio.AioRpcError, match="ask the learner itself"):
            await RolloutsStub(channel).ListRollouts(pb.ListRolloutsRequest())


@on_loop
async def test_a_learner_that_knows_no_tasks_is_to_be_updated_says_a_relay(tmp_path: Path) -> None:
    async with (
        rollout_cloud(tmp_path) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        calling(cloud.pki, "pi-1", port) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="knows no tasks: update it") as caught:
            await DispatcherStub(channel).NextTask(task_of("pi-1"), wait_for_ready=True)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@on_loop
async def test_many_calls_share_a_connection_as_long_as_it_takes_them(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        pool = ChannelPool(UpstreamConfig("localhost", cloud.port), cloud.identity("pi-1"))
        async with AsyncExitStack() as stack:
            for n in range(2 * CALLS_PER_CHANNEL + 1):
                await stack.enter_async_context(pool.channel())
                assert len(pool) == 1 + n // CALLS_PER_CHANNEL
        assert len(pool) == 0
