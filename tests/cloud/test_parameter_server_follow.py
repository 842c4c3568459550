"""Devices that say on the stream of their policies what they act with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parameter_cloud import DEADLINE_S, Cloud, Play, Scenario, eventually

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.identity import Identity
from shoal.policy import decode_bundle
from shoal.policy_delta import Content, decode_policy_delta
from shoal.v1 import parameter_server_pb2 as pb
from shoalctl.pki.pki import FleetPki, Role

RUN_ID = bytes(range(16))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """A server that waits for a report as long as a test may take."""
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = Identity(pki.issue("learner", Role.LEARNER), "learner", None)

    @asynccontextmanager
    async def cloud() -> AsyncIterator[Cloud]:
        with PolicyLog(tmp_path / "policies", Ed25519PrivateKey.generate(), "reef") as log:
            server = ParameterServer(log, fleet="reef", patience_s=DEADLINE_S)
            async with GrpcServer("127.0.0.1", 0, identity, [server]) as endpoint:
                there = Cloud(pki, log, server, endpoint.port, [])
                async with there.stack:
                    yield there
            await eventually(lambda: server.watchers == 0)

    async def perform(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_S), cloud() as there:
            await scenario(there)

    return lambda scenario: asyncio.run(perform(scenario))


def watching(version: int = 0, digest: bytes = b"", *, name: str = "pi-1") -> pb.FollowRequest:
    request = pb.WatchRequest(
        fleet="reef",
        device_id=name,
        have_version=version,
        have_digest=digest,
        accepts_delta=True,
    )
    return pb.FollowRequest(watch=request)


def acting(
    version: int, digest: bytes, *, handled: int = 0, name: str = "", fleet: str = ""
) -> pb.FollowRequest:
    report = pb.ReportActiveRequest(
        fleet=fleet,
        device_id=name,
        run_id=RUN_ID,
        version=version,
        digest=digest,
        handled_version=handled,
    )
    return pb.FollowRequest(active=report)


def restored(payload: bytes, base: Published) -> bytes:
    return decode_policy_delta(payload).restore(Content.of(decode_bundle(base.bundle)))


def test_the_next_delta_starts_from_what_a_device_says_on_the_stream(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        watch = await (await cloud.device("pi-1")).follow(watching())
        assert await watch.payload() == first.bundle
        second = cloud.step()
        await watch.call.write(acting(1, first.digest))
        assert restored(await watch.payload(), first) == second.bundle
        await watch.call.write(acting(2, second.digest))
        third = cloud.step()
        assert restored(await watch.payload(), second) == third.bundle
        active = cloud.server.active("pi-1")
        assert active is not None
        assert (active.base.version, active.run_id) == (2, RUN_ID)

    play(scenario)


def test_a_report_from_before_a_refresh_does_not_answer_it(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = await device.follow(watching(1, first.digest), acting(1, first.digest))
        await eventually(lambda: cloud.server.active("pi-1") is not None)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle
        third = cloud.step()
        await watch.call.write(acting(1, first.digest, handled=1))
        reading = asyncio.ensure_future(watch.payload())
        await device.graph(second.manifest.graph_digest).payload()  # time enough to be sent
        assert not reading.done()
        await watch.call.write(acting(1, first.digest, handled=2))  # it refused the second
        assert restored(await reading, first) == third.bundle

    play(scenario)


def test_a_device_that_reports_by_a_call_beside_its_stream_is_heard_too(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        first = cloud.step()
        device = await cloud.device("pi-1")
        watch = await device.follow(watching())
        await watch.payload()
        await device.report(1, first.digest)
        second = cloud.step()
        assert restored(await watch.payload(), first) == second.bundle

    play(scenario)


def test_a_stream_begins_with_a_watch_under_its_own_name(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        for first, code in (
            (acting(1, bytes(32)), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.FollowRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            (watching(name="pi-2"), grpc.StatusCode.PERMISSION_DENIED),
        ):
            assert (await (await device.follow(first)).refusal()).code is code
        ended = await device.follow()
        await ended.call.done_writing()
        assert (await ended.refusal()).code is grpc.StatusCode.INVALID_ARGUMENT
        assert cloud.server.active("pi-1") is None

    play(scenario)


def test_a_stream_whose_device_never_says_what_it_watches_is_ended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_learner.downlink.follower.FIRST_REQUEST_S", 0.0)

    async def scenario(cloud: Cloud) -> None:
        watch = await (await cloud.device("pi-1")).follow()
        assert "begins with a watch" in (await watch.refusal()).details

    play(scenario)


def test_a_report_that_makes_no_sense_or_is_of_another_ends_the_stream(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        for second, code in (
            (acting(1, b"short"), grpc.StatusCode.INVALID_ARGUMENT),
            (acting(2**63, bytes(32)), grpc.StatusCode.INVALID_ARGUMENT),
            (watching(), grpc.StatusCode.INVALID_ARGUMENT),
            (acting(1, bytes(32), name="pi-2"), grpc.StatusCode.PERMISSION_DENIED),
            (acting(1, bytes(32), fleet="pond"), grpc.StatusCode.PERMISSION_DENIED),
        ):
            assert (await (await device.follow(watching(), second)).refusal()).code is code
        assert cloud.server.active("pi-1") is None
        assert cloud.server.active("pi-2") is None

    play(scenario)


def test_a_stopping_server_ends_the_streams_that_it_is_followed_by(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        watch = await (await cloud.device("pi-1")).follow(watching())
        await eventually(lambda: cloud.server.watchers == 1)
        cloud.server.stop_streams()
        assert (await watch.refusal()).code is grpc.StatusCode.UNAVAILABLE

    play(scenario)
