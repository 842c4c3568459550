"""Who reads what of a parameter server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from parameter_cloud import DEADLINE_S, GRAPH, PATIENCE_S, Cloud, Play, Scenario, eventually

from cloud_learner.downlink.parameter_server import (
    ParameterServer,
)
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.serving.grpc_server import GrpcServer
from cloud_learner.uplink.traffic import Traffic
from shoal.identity import Identity
from shoal.policy import (
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


def test_a_certificate_watches_under_its_own_name_only(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device = await cloud.device("pi-1")
        error = await device.watch(name="pi-2").refusal()
        assert error.code is grpc.StatusCode.PERMISSION_DENIED
        assert "the certificate is of 'pi-1', the call says 'pi-2'" in error.details
        for role in (Role.OPERATOR, Role.BROKER):
            other = await cloud.device(str(role), role=role)
            error = await other.watch().refusal()
            assert error.code is grpc.StatusCode.PERMISSION_DENIED
            assert "reserved" in error.details
        assert cloud.server.total_traffic() == Traffic()

    play(scenario)


def test_only_devices_operators_and_learners_read_policies(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = cloud.publish()
        operator = await cloud.device("operator", role=Role.OPERATOR)
        assert await operator.policy(1).payload() == published.bundle
        assert await operator.graph(sha256(GRAPH)).payload() == GRAPH
        broker = await cloud.device("broker", role=Role.BROKER)
        for call in (broker.policy(1), broker.graph(sha256(GRAPH))):
            assert (await call.refusal()).code is grpc.StatusCode.PERMISSION_DENIED

    play(scenario)


def test_another_fleet_is_told_whose_server_this_is(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        cloud.publish()
        device = await cloud.device("pi-1")
        calls = (
            device.watch(fleet="atoll"),
            device.policy(1, fleet="atoll"),
            device.graph(sha256(GRAPH), fleet="atoll"),
        )
        for call in calls:
            error = await call.refusal()
            assert error.code is grpc.StatusCode.FAILED_PRECONDITION
            assert "of fleet 'reef', the call is for fleet 'atoll'" in error.details

    play(scenario)


def test_a_graph_is_found_by_its_digest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        published = cloud.publish()
        device = await cloud.device("pi-1")
        assert await device.graph(published.manifest.graph_digest).payload() == GRAPH

    play(scenario)


def test_an_unknown_graph_is_not_found_and_the_right_one_is_named(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        error = await device.graph(bytes(32)).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "no policy is published yet" in error.details
        cloud.publish()
        error = await device.graph(bytes(32)).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert f"version 1, uses {sha256(GRAPH).hex()}" in error.details
        for digest in (b"", b"../../etc/passwd", bytes(33)):
            error = await device.graph(digest).refusal()
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT

    play(scenario)


def test_versions_are_fetched_by_number_and_zero_is_the_newest(play: Play) -> None:
    async def scenario(cloud: Cloud) -> None:
        device = await cloud.device("pi-1")
        error = await device.policy(0).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "none is published yet" in error.details
        first, second = cloud.publish(), cloud.publish()
        assert await device.policy(1).payload() == first.bundle
        assert await device.policy(0).payload() == second.bundle
        error = await device.policy(2**64 - 1).refusal()
        assert error.code is grpc.StatusCode.NOT_FOUND
        assert "kept are 1 to 2" in error.details

    play(scenario)
