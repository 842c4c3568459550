"""The downlink against a real gRPC server with mutual TLS: policies come, and it never dies."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from brokers import WAIT_S, free_port
from mqtt_learner import asyncs
from policy_server import DEVICE, FLEET, RUN_ID, Publisher, device, served, served_first

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import reach
from shoal.errors import ConnectionFailed
from shoal.identity import Identity
from shoal.policy import MAX_BUNDLE_BYTES
from shoal.v1 import parameter_server_pb2 as pb
from shoalctl.pki.pki import FleetPki, Role


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> FleetPki:
    made = FleetPki.create(tmp_path_factory.mktemp("pki") / "pki", FLEET)
    made.issue("server", Role.SERVER)
    made.issue(DEVICE, Role.DEVICE)
    return made


@asyncs
async def test_a_report_whose_connection_goes_away_under_it_is_made_again_over_the_next(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    before = served(pki, port, follows=False)
    async with before as server, device(pki, port, tmp_path, publisher) as it:
        server.answers.clear()
        published = publisher.publish(1, weights=publisher.weights(0))
        server.graphs[published.manifest.graph_digest] = published.graph
        server.push(published.bundle, 1)
        await server.reported(1)
        senseless = pb.Part(version=2, total_bytes=9, offset=5, data=b"x")
        server.parts.put_nowait([senseless])  # the device closes the connection
        await it.event("parameter_server_lost")
        server.answers.set()
        reports = len(server.reports)
        await server.reported(1, more_than=reports)


@asyncs
async def test_a_pushed_policy_becomes_current_and_its_graph_is_fetched_once(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        for version in (1, 2):
            published = publisher.publish(version, weights=publisher.weights(0))
            server.graphs[published.manifest.graph_digest] = published.graph
            server.push(published.bundle, version)
            swapped = await asyncio.to_thread(it.policies.wait_newer, version - 1, WAIT_S)
            assert swapped is not None
        assert (await it.event("policy_swapped"))["policy_version"] == "1"
        assert not it.events.take()  # the swaps that follow are routine: telemetry counts them
        assert it.policies.current is not None
        assert it.policies.current.version == 2
        assert server.graph_calls == 1
        assert it.downlink.bytes_down > len(published.bundle)
        assert (server.requests[0].fleet, server.requests[0].device_id) == (FLEET, DEVICE)
        assert server.requests[0].have_version == 0


@asyncs
async def test_after_a_lost_server_it_asks_for_what_is_newer(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    published = publisher.publish(5)
    async with device(pki, port, tmp_path, publisher) as it:
        async with served(pki, port) as server:
            server.graphs[published.manifest.graph_digest] = published.graph
            server.push(published.bundle)
            await it.event("policy_swapped")
        await it.event("parameter_server_lost")
        async with served(pki, port) as server:
            newer = publisher.publish(6)
            server.graphs[newer.manifest.graph_digest] = newer.graph
            server.push(newer.bundle)
            assert (await it.event("policy_swapped"))["policy_version"] == "6"
            assert "parameter_server_back" in it.seen
            assert server.requests[0].have_version == 5
            assert server.requests[0].have_digest == published.manifest.digest


@asyncs
async def test_a_policy_that_is_not_signed_right_is_told_and_the_next_one_taken(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, foreign: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.push(foreign.publish(1).bundle)
        assert (await it.event("policy_rejected"))["reason"] == "signature"
        good = publisher.publish(2)
        server.graphs[good.manifest.graph_digest] = good.graph
        server.push(good.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_a_graph_that_cannot_be_had_is_told_and_watching_goes_on(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        lost = publisher.publish(1)
        server.push(lost.bundle)
        assert "not_found" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(2)
        server.graphs[lost.manifest.graph_digest] = lost.graph
        server.push(lost.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_parts_that_do_not_fit_together_are_told_and_watching_goes_on(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    good = publisher.publish(1)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.graphs[good.manifest.graph_digest] = good.graph
        server.parts.put_nowait([pb.Part(total_bytes=MAX_BUNDLE_BYTES + 1, data=b"x")])
        assert "limit" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(2)
        server.parts.put_nowait([pb.Part(total_bytes=10, offset=5, data=b"x")])
        assert "expected" in (await it.event("parameter_server_lost"))["message"]
        await server.watched(3)
        server.push(good.bundle)
        await it.event("policy_swapped")


@asyncs
async def test_a_server_of_another_fleet_is_not_trusted(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    other = FleetPki.create(tmp_path / "other", FLEET)
    stranger = other.issue(DEVICE, Role.DEVICE)
    port = free_port()
    async with (
        served(pki, port) as server,
        device(pki, port, tmp_path / "policies", publisher, identity=stranger) as it,
    ):
        await it.event("parameter_server_lost")
        assert server.requests == []
        with pytest.raises(ConnectionFailed, match="not trusted"):
            await reach(
                ServerConfig(port=port), Identity.load(stranger), fleet=FLEET, timeout_s=WAIT_S
            )


@asyncs
async def test_a_check_finds_a_server_that_is_there_and_misses_one_that_is_not(
    pki: FleetPki, tmp_path: Path
) -> None:
    port = free_port()
    who = Identity.load(pki.directory / "identities" / DEVICE)
    config = ServerConfig(port=port)
    async with served(pki, port) as server:
        assert await reach(config, who, fleet=FLEET, timeout_s=WAIT_S) == 0
        server.newest = pb.Part(version=4, total_bytes=2, data=b"x")
        assert await reach(config, who, fleet=FLEET, timeout_s=WAIT_S) == 4
        with pytest.raises(ConnectionFailed, match="of another fleet"):
            await reach(config, who, fleet="other", timeout_s=WAIT_S)
    with pytest.raises(ConnectionFailed, match="nothing listens there"):
        await reach(config, who, fleet=FLEET, timeout_s=WAIT_S)


@asyncs
async def test_what_acts_is_reported_at_once_and_after_a_refusal(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, foreign: Publisher
) -> None:
    port = free_port()
    first = publisher.publish(1)
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, first)
        await server.reported(1)
        told = server.reports[-1]
        assert (told.fleet, told.device_id, told.run_id) == (FLEET, DEVICE, RUN_ID)
        assert told.digest == first.manifest.digest
        before = len(server.reports)
        server.push(foreign.publish(2).bundle, 2)
        await it.event("policy_rejected")
        await server.reported(1, more_than=before)
        policy = it.policies.current
        assert policy is not None
        await asyncio.to_thread(it.policies.condemn, policy, "non_finite")
        await server.reported(0)


@asyncs
async def test_a_server_that_knows_how_is_told_on_the_stream(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        server.answers.clear()  # a call would wait
        await served_first(server, it, publisher.publish(1))
        await server.reported(1)
        server.push(publisher.publish(2).bundle, 2)
        await server.reported(2)
        assert server.followed == 1
        assert server.reports[-1].handled_version == 2


@asyncs
async def test_a_server_of_before_is_watched_and_called_and_a_newer_one_followed(
    pki: FleetPki, tmp_path: Path, publisher: Publisher
) -> None:
    port = free_port()
    async with device(pki, port, tmp_path, publisher) as it:
        async with served(pki, port, follows=False) as server:
            await served_first(server, it, publisher.publish(1))
            await server.reported(1)
            server.push(publisher.publish(2).bundle, 2)
            await server.reported(2)
            assert (server.followed, len(server.requests)) == (0, 1)
        async with served(pki, port) as server:
            server.push(publisher.publish(3).bundle, 3)
            await server.reported(3)
            assert (server.followed, len(server.requests)) == (1, 1)


def saved(directory: Path, version: int) -> bool:
    return any(directory.glob(f"*/{version:020d}-*.bundle"))


@asyncs
async def test_a_policy_acts_and_is_reported_though_the_disk_is_slow(
    pki: FleetPki, tmp_path: Path, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with served(pki, port) as server, device(pki, port, tmp_path, publisher) as it:
        await served_first(server, it, publisher.publish(1))
        await server.reported(1)
        may_save, is_saved, save = threading.Event(), threading.Event(), it.policies.save

        def save_later() -> None:
            assert may_save.wait(WAIT_S)
            save()
            is_saved.set()

        monkeypatch.setattr(it.policies, "save", save_later)
        for version in (2, 3):
            server.push(publisher.publish(version).bundle, version)
            acting = await asyncio.to_thread(it.policies.wait_newer, version - 1, WAIT_S)
            assert acting is not None
            await server.reported(version)
            assert not saved(tmp_path, version)
        may_save.set()
        assert await asyncio.to_thread(is_saved.wait, WAIT_S)
        it.policies.save()  # the first may have begun before the third came
        assert saved(tmp_path, 3)
