"""A parameter server with its log, and devices that watch it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parameter_cloud import (
    DEADLINE_S,
    GRAPH,
    LARGE,
    PATIENCE_S,
    SMALL,
    Cloud,
    Play,
    Scenario,
    eventually,
)

from cloud_learner.downlink.parameter_server import (
    MAX_STUCK_WATCHES_PER_DEVICE,
    MAX_WATCHES_PER_DEVICE,
    ParameterServer,
)
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.refresh import Offer
from cloud_learner.serving.grpc_server import GrpcServer
from cloud_learner.uplink.traffic import Traffic
from shoal.identity import Identity
from shoal.policy import (
    decode_bundle,
    sha256,
)
from shoalctl.pki.pki import FleetPki, Role


@pytest.fixture
def play(tmp_path: Path) -> Play:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)

    @asynccontextmanager
    async def cloud() -> AsyncIterator[Cloud]:
        with PolicyLog(tmp_path / "policies", Ed25519PrivateKey.generate(), "reef") as log:
            ahead: list[int] = []
            server = ParameterServer(
                log, fleet="reef", note_version=ahead.append, patience_s=PATIENCE_S
            )
            async with GrpcServer("127.0.0.1", 0, identity, [server]) as endpoint:
                there = Cloud(pki, log, server, endpoint.port, ahead)
                async with there.stack:
                    yield there
            await eventually(lambda: server.watchers == 0)

    async def perform(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_S), cloud() as there:
            await scenario(there)

    return lambda scenario: asyncio.run(perform(scenario))


def test_a_device_gets_the_newest_policy_and_then_each_newer_one(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        second = cloud.publish()
        watch = (await cloud.device("pi-1")).watch()
        assert (await watch.payload(), watch.version) == (second.bundle, 2)
        third = cloud.publish()
        assert (await watch.payload(), watch.version) == (third.bundle, 3)

    play(scenario)


def test_a_device_may_wait_for_the_first_policy(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        watch = (await cloud.device("pi-1")).watch()
        await eventually(lambda: cloud.server.watchers == 1)
        first = cloud.publish()
        assert await watch.payload() == first.bundle

    play(scenario)


def test_a_large_policy_arrives_in_parts(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        large = cloud.publish(LARGE)
        watch = (await cloud.device("pi-1")).watch()
        assert await watch.payload() == large.bundle

    play(scenario)


def test_a_device_that_comes_back_gets_nothing_until_there_is_a_newer_one(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for _ in range(3):
            watch = device.watch(have=1, digest=first.digest)
            await eventually(lambda: cloud.server.watchers == 1)
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)
        assert cloud.server.traffic("pi-1") == Traffic()
        watch = device.watch(have=1, digest=first.digest)
        await eventually(lambda: cloud.server.watchers == 1)
        second = cloud.publish()
        assert (await watch.payload(), watch.version) == (second.bundle, 2)

    play(scenario)


def test_what_a_device_missed_is_made_good_by_the_newest_alone(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for _ in range(5):
            newest = cloud.publish()
        watch = device.watch(have=1, digest=first.digest)
        assert (await watch.payload(), watch.version) == (newest.bundle, 6)

    play(scenario)


def test_a_slow_device_delays_no_other_skips_versions_and_costs_no_memory(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish(LARGE)
        slow = (await cloud.device("pi-slow")).watch()
        assert await slow.part() is None  # has begun, and stops reading
        fast = (await cloud.device("pi-fast")).watch()
        assert await fast.payload() == first.bundle
        for _ in range(10):
            newest = cloud.publish(LARGE)
            assert await fast.payload() == newest.bundle
        assert cloud.server.traffic("pi-slow").refreshes == 0
        gc.collect()
        held = [thing for thing in gc.get_objects() if type(thing) is Offer]
        assert len(held) <= 2  # the one it is being sent, and the newest
        assert (await slow.payload(), slow.version) == (first.bundle, 1)
        assert (await slow.payload(), slow.version) == (newest.bundle, 11)

    play(scenario)


def test_a_hundred_devices_watch_at_once(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        devices = [await cloud.device(f"pi-{number}") for number in range(100)]
        watches = [device.watch() for device in devices]
        await asyncio.gather(*(watch.payload() for watch in watches))
        assert cloud.server.watchers == 100
        for _ in range(3):
            newest = cloud.publish()
            payloads = await asyncio.gather(*(watch.payload() for watch in watches))
            assert set(payloads) == {newest.bundle}
        await eventually(lambda: cloud.server.total_traffic().refreshes == 400)
        assert {cloud.server.traffic(device.name).refreshes for device in devices} == {4}

    play(scenario)


def test_bytes_are_counted_by_device_beside_what_fp32_would_have_cost(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        one, two = await cloud.device("pi-1"), await cloud.device("pi-2")
        watches = (one.watch(), two.watch())
        for watch in watches:
            await watch.payload()
        second = cloud.publish()
        for watch in watches:
            await watch.payload()
        await one.graph(sha256(GRAPH)).payload()
        bundles = len(first.bundle) + len(second.bundle)
        mine = Traffic(bundles + len(GRAPH), bytes_down_fp32=2 * 4 * SMALL, refreshes=2)
        theirs = Traffic(bundles, bytes_down_fp32=2 * 4 * SMALL, refreshes=2)
        await eventually(lambda: cloud.server.traffic("pi-1") == mine)
        await eventually(lambda: cloud.server.traffic("pi-2") == theirs)
        assert cloud.server.traffic("pi-3") == Traffic()
        assert cloud.server.total_traffic() == Traffic(
            2 * bundles + len(GRAPH), bytes_down_fp32=4 * 4 * SMALL, refreshes=4
        )

    play(scenario)


def test_a_stopping_server_tells_every_device_to_come_back(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        watch = (await cloud.device("pi-1")).watch()
        await watch.payload()
        cloud.server.stop_streams()
        error = await watch.refusal()
        assert error.code is grpc.StatusCode.UNAVAILABLE
        assert "come back" in error.details

    play(scenario)


def test_a_device_that_leaves_watches_behind_keeps_its_newest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device, neighbour = await cloud.device("pi-1"), await cloud.device("pi-2")
        other = neighbour.watch()
        await other.payload()
        watches = []
        for _ in range(MAX_WATCHES_PER_DEVICE + 1):
            watches.append(device.watch())
            await watches[-1].payload()
        error = await watches[0].refusal()
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert cloud.server.watchers == MAX_WATCHES_PER_DEVICE + 1
        newest = cloud.publish()
        for watch in (*watches[1:], other):
            assert await watch.payload() == newest.bundle

    play(scenario)


def test_a_device_that_hoards_stuck_watches_is_refused_more(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish(LARGE)
        device = await cloud.device("pi-1")
        stuck = [device.watch() for _ in range(MAX_STUCK_WATCHES_PER_DEVICE)]
        for watch in stuck:
            assert await watch.part() is None  # has begun, and stops reading
        error = await device.watch().refusal()
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "16 watches open" in error.details
        assert await (await cloud.device("pi-2")).watch().payload()

    play(scenario)


def test_a_device_with_a_version_this_log_never_published_is_reported(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.publish()
        device = await cloud.device("pi-1")
        for have, digest in ((1, first.digest), (1, bytes(32)), (99, bytes(32))):
            caplog.clear()
            watch = device.watch(have=have, digest=digest)
            await eventually(lambda: cloud.server.watchers == 1)
            reported = "device_diverged" in [record.getMessage() for record in caplog.records]
            assert reported == (digest != first.digest)
            watch.call.cancel()
            await eventually(lambda: cloud.server.watchers == 0)
        assert cloud.server.total_traffic() == Traffic()
        assert cloud.ahead == [99]

    with caplog.at_level(logging.WARNING, "shoal"):
        play(scenario)


def test_an_announcement_that_comes_late_is_ignored(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first, second = cloud.publish(), cloud.publish()
        cloud.server.announce(first)
        assert cloud.server.offered_version == 2
        watch = (await cloud.device("pi-1")).watch()
        assert await watch.payload() == second.bundle

    play(scenario)


def test_a_restarted_server_offers_what_the_log_holds(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()

    async def scenario() -> None:
        with PolicyLog(tmp_path, key, "reef") as log:
            before = Cloud(
                FleetPki.create(tmp_path / "pki", "reef"),
                log,
                ParameterServer(log, fleet="reef"),
                0,
                [],
            )
            before.publish()
            second = before.publish()
        with PolicyLog(tmp_path, key, "reef") as log:
            assert ParameterServer(log, fleet="reef").offered_version == 2
            newest = log.newest()
            assert newest is not None
            assert decode_bundle(newest.bundle) == decode_bundle(second.bundle)

    asyncio.run(scenario())
