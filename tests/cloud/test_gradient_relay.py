"""Gradients of devices behind a relay, over gRPC with mutual TLS to a real learner's services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from brokers import free_port
from gradient_cloud import INTERVAL, SPEC, Cloud, Device, config_in, learning
from relay_site import FLEET, calling, relay_site
from sim import on_loop, until
from strategies import RUN_ID, make_chunk

from cloud_learner.fleet.event_log import Query
from cloud_learner.gradients.worker import make_worker
from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.config import RelayConfig, UpstreamConfig
from edge_agent.config import ServerConfig
from edge_agent.events import Events
from edge_agent.gradients.config import GradientsConfig
from edge_agent.gradients.queue import GradientQueue
from edge_agent.gradients.uplink import GradientUplink
from shoal.errors import ConfigError
from shoal.identity import Identity
from shoal.v1 import update_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub
from shoalctl.pki.pki import FleetPki, Role


@asynccontextmanager
async def behind(pki: FleetPki, port: int, name: str = "pi-1") -> AsyncIterator[Device]:
    """A device that computes gradients and knows of no other server than this one."""
    async with calling(pki, name, port) as channel:
        await channel.channel_ready()
        yield Device(name, ParameterServerStub(channel))


@asynccontextmanager
async def site(
    tmp_path: Path, *, normalize: bool = False, **gradients: object
) -> AsyncIterator[tuple[Cloud, int]]:
    async with (
        learning(tmp_path, config_in(tmp_path, normalize=normalize, **gradients)) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
    ):
        yield cloud, port


@on_loop
async def test_updates_of_devices_behind_a_relay_change_the_weights_that_they_then_get(
    tmp_path: Path,
) -> None:
    async with (
        site(tmp_path) as (cloud, port),
        behind(cloud.pki, port) as one,
        behind(cloud.pki, port, "pi-2") as two,
    ):
        before = cloud.flat
        for made in range(INTERVAL):
            response = await (one, two)[made % 2].push()
            assert (response.applied, response.reason, response.updates) == (True, "", made + 1)
        assert not np.array_equal(cloud.flat, before)
        weights = await one.weights(have=1)
        assert weights is not None
        np.testing.assert_array_equal(weights.values, cloud.flat)
        assert await one.weights(have=INTERVAL) is None
        await until(lambda: cloud.core.parts.policy_log.highest_version >= 2)
        assert cloud.counters["updates_applied"] == INTERVAL


@on_loop
async def test_an_agents_own_uplink_computes_and_pushes_through_a_relay(tmp_path: Path) -> None:
    async with site(tmp_path, normalize=True, max_norm=1e9) as (cloud, port):
        keys = cloud.pki.issue("pi-1", Role.DEVICE)
        settings, queue = GradientsConfig(passes=2), GradientQueue(4)
        uplink = GradientUplink(
            ServerConfig("localhost", port, backoff_cap_s=0.05),
            Identity(keys, "pi-1", None),
            queue,
            make_worker(SPEC, allow=()),
            Events("pi-1", RUN_ID, clock=lambda: 0.0),
            settings,
            fleet=FLEET,
            run_id=RUN_ID,
            spec=SPEC,
        )
        running = asyncio.ensure_future(uplink.serve())
        try:
            for seed in range(2):
                queue.put(make_chunk(SPEC, seed=seed))
            await until(lambda: uplink.counters.applied == 2 * settings.passes)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert cloud.counters["updates_applied"] == 2 * settings.passes
        assert cloud.core.parts.stats.env_steps > 0
        normalizer = cloud.source.normalizer
        assert normalizer is not None
        rows = np.concatenate([make_chunk(SPEC, seed=seed).observations[:-1] for seed in range(2)])
        wanted = rows.reshape(-1, 4).astype(np.float64)
        seen = normalizer.seen
        assert seen is not None
        np.testing.assert_allclose(seen.mean, wanted.mean(0), rtol=1e-9)
        np.testing.assert_allclose(seen.squares / seen.count, wanted.var(0), rtol=1e-9)


@on_loop
async def test_the_learner_knows_whose_update_it_is_and_applies_it_once(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as (cloud, port),
        behind(cloud.pki, port) as device,
        behind(cloud.pki, cloud.port) as direct,
    ):
        request = await device.update()
        assert (await device.push(request)).applied
        # What a device does not know to have come, it sends again, whichever way is open.
        assert (await direct.push(request)).reason == "duplicate"
        other = await device.update(norm=1e6)
        assert (await device.push(other)).reason == "norm"
        kinds = Query(kinds=frozenset({"update_refused"}))
        (told,) = cloud.core.parts.fleet.log.newest(kinds, limit=9)
        assert told.about == "pi-1"


@on_loop
async def test_no_device_pushes_or_asks_for_another_through_a_relay(tmp_path: Path) -> None:
    async with site(tmp_path) as (cloud, port), behind(cloud.pki, port) as device:
        request, before = await device.update(device_id="pi-2"), cloud.flat
        with pytest.raises(grpc.aio.AioRpcError, match="under its own name") as caught:
            await device.push(request)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        for wrong in (replace(device, name="pi-2").weights(), device.weights(fleet="other")):
            with pytest.raises(grpc.aio.AioRpcError, match=r"under its own name|of fleet"):
                await wrong
        np.testing.assert_array_equal(cloud.flat, before)


@on_loop
async def test_at_the_learner_only_a_relay_pushes_for_others(tmp_path: Path) -> None:
    async with learning(tmp_path, config_in(tmp_path)) as cloud:
        async with behind(cloud.pki, cloud.port) as device:
            request = await device.update(device_id="pi-2")
            with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
                await device.push(request)
        async with behind(cloud.pki, cloud.port, "site-b") as relay:
            assert (await relay.push(request)).applied


@on_loop
async def test_a_relay_says_so_when_its_learner_takes_no_gradients_or_is_away(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    trajectories = replace(config, training=replace(config.training, mode="async"))
    async with (
        learning(tmp_path, trajectories, born=False) as cloud,
        relay_site(cloud.pki, cloud.port, tmp_path / "site") as port,
        behind(cloud.pki, port) as device,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="takes no gradients: set") as caught:
            await device.weights()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    async with (
        relay_site(cloud.pki, free_port(), tmp_path / "site") as port,
        behind(cloud.pki, port) as device,
    ):
        request = pb.PushUpdateRequest(fleet=FLEET, device_id="pi-1")
        for call in (device.weights(), device.push(request)):
            with pytest.raises(grpc.aio.AioRpcError, match=r"cannot reach .* gradients wait") as e:
                await call
            assert e.value.code() is grpc.StatusCode.UNAVAILABLE


@on_loop
async def test_an_update_larger_than_a_relay_reads_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as (cloud, port), behind(cloud.pki, port) as device:
        whole = await device.update()
        assert whole.ByteSize() < 100_000
        large = await device.update(body=bytes(4_194_305))
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await device.push(large)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # One that a device of a large network sends goes through: to be refused by the learner.
        answer = await device.push(await device.update(body=bytes(1_000_000)))
        assert answer.reason == "malformed"


def test_a_relay_reads_at_least_what_every_call_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_update_bytes = 1000 .*65536 or more"):
        RelayConfig(FLEET, tmp_path, tmp_path, UpstreamConfig("a"), max_update_bytes=1000)


@on_loop
async def test_one_connection_upstream_stays_open_between_two_gradients(tmp_path: Path) -> None:
    async with learning(tmp_path, config_in(tmp_path)) as cloud:
        identity = Identity(cloud.pki.issue("site-b", Role.RELAY), "site-b", None)
        async with ChannelPool(UpstreamConfig("localhost", cloud.port), identity) as pool:
            async with pool.channel() as first, pool.channel():
                await first.channel_ready()
            assert len(pool) == 1
            async with pool.channel() as again:
                assert again is first
                assert len(pool) == 1
        assert len(pool) == 0
