"""A relay between a real parameter server and devices, over gRPC with the fleet's certificates."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from brokers import free_port
from relay_policies import FLEET, GRAPH, TWIN_GRAPH, publish
from sim import on_loop, until

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.signing import load_signer, load_signing_key
from cloud_learner.relay import upstream as upstream_module
from cloud_learner.relay.active_reports import ActiveReports
from cloud_learner.relay.config import UpstreamConfig
from cloud_learner.relay.relay_server import RelayServer
from cloud_learner.relay.relay_store import RelayStore
from cloud_learner.relay.upstream import Upstream
from cloud_learner.serving.grpc_server import Context, GrpcServer
from shoal.identity import Identity
from shoal.policy import MAX_BUNDLE_BYTES, Assembler, PayloadPart, sha256
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoalctl.pki.delegates import DelegationOffice, install
from shoalctl.pki.pki import FleetPki, Role

RUN_ID, DIGEST = bytes(16), bytes(32)


class Learner(ParameterServer):
    """A parameter server that can be made to lie, and remembers how it sent what."""

    def __init__(self, log: PolicyLog) -> None:
        super().__init__(log, fleet=FLEET)
        self.kinds: list[pb.PayloadKind] = []
        self.tampers: Callable[[bytes], bytes] = lambda data: data

    async def Watch(  # noqa: N802 - the name in the proto
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        async for part in super().Watch(request, context):
            self.kinds.append(part.kind)
            sent = pb.Part()
            sent.CopyFrom(part)
            sent.data = self.tampers(part.data)
            yield sent


@dataclass
class Relay:
    """A relay that runs."""

    store: RelayStore
    server: RelayServer
    reports: ActiveReports
    upstream: Upstream
    port: int


class Place:
    """A learner's machine, a site with a relay, and the keys of both."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pki = FleetPki.create(path / "pki", FLEET)
        self.port = free_port()
        self.learner_identity = Identity.load(self.pki.issue("learner", Role.LEARNER))
        self.relay_identity = Identity.load(self.pki.issue("site-a", Role.RELAY))

    @asynccontextmanager
    async def learner(self, *, directory: str = "log") -> AsyncIterator[tuple[PolicyLog, Learner]]:
        signer = load_signer(self.learner_identity, FLEET)
        with PolicyLog(self.path / directory, signer.key, FLEET, held=signer.held) as log:
            server = Learner(log)
            async with GrpcServer("127.0.0.1", self.port, self.learner_identity, [server]):
                yield log, server

    @asynccontextmanager
    async def relay(self, clock: Callable[[], float] = time.time) -> AsyncIterator[Relay]:
        key = self.relay_identity.policy_public_key
        assert key is not None
        with RelayStore(self.path / "relay", key, FLEET, keep=4, clock=clock) as store:
            reports = ActiveReports()
            server = RelayServer(store, fleet=FLEET, note_active=reports.note)
            upstream = Upstream(
                UpstreamConfig("127.0.0.1", self.port, backoff_cap_s=0.05),
                self.relay_identity,
                store,
                reports,
                fleet=FLEET,
                on_policy=server.announce,
                rng=random.Random(0),
            )
            async with (
                GrpcServer("127.0.0.1", 0, self.relay_identity, [server]) as served,
                running(upstream.follow, upstream.forward),
            ):
                yield Relay(store, server, reports, upstream, served.port)

    @asynccontextmanager
    async def device(self, name: str, port: int) -> AsyncIterator[rpc.ParameterServerStub]:
        directory = self.pki.directory / "identities" / name
        if not directory.exists():
            self.pki.issue(name, Role.DEVICE)
        pems = Identity.load(directory).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", keys, options) as channel:
            yield rpc.ParameterServerStub(channel)


@asynccontextmanager
async def running(*services: Callable[[], Coroutine[None, None, None]]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(service()) for service in services]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def next_policy(stub: rpc.ParameterServerStub, name: str, have: int = 0) -> bytes:
    call = stub.Watch(pb.WatchRequest(fleet=FLEET, device_id=name, have_version=have))
    try:
        return await whole(call)
    finally:
        call.cancel()


async def whole(parts: AsyncIterator[pb.Part]) -> bytes:
    assembler = Assembler(MAX_BUNDLE_BYTES)
    async for part in parts:
        payload = assembler.add(PayloadPart(part.total_bytes, part.offset, part.data))
        if payload is not None:
            return payload
    raise AssertionError("the stream ended")


@on_loop
async def test_devices_behind_a_relay_get_each_policy_and_its_graphs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with (
        place.learner() as (log, learner),
        place.relay() as relay,
        place.device("pi-1", relay.port) as device,
    ):
        waiting = asyncio.ensure_future(next_policy(device, "pi-1"))
        published = publish(log)
        learner.announce(published)
        assert await waiting == published.bundle
        for graph in (GRAPH, TWIN_GRAPH):
            wanted = pb.GetGraphRequest(fleet=FLEET, digest=sha256(graph))
            assert await whole(device.GetGraph(wanted)) == graph
        newest = pb.GetPolicyRequest(fleet=FLEET, version=0)
        assert await whole(device.GetPolicy(newest)) == published.bundle


@on_loop
async def test_a_policy_comes_over_the_wide_network_once_however_many_devices_take_it(
    tmp_path: Path,
) -> None:
    place, names = Place(tmp_path), [f"pi-{n}" for n in range(8)]
    async with place.learner() as (log, learner), place.relay() as relay, AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(place.device(n, relay.port)) for n in names]
        published = publish(log)
        learner.announce(published)
        taken = await asyncio.gather(*map(next_policy, devices, names))
        assert taken == [published.bundle] * len(names)
        once = len(published.bundle) + len(GRAPH) + len(TWIN_GRAPH)
        assert learner.total_traffic().bytes_down == once == relay.upstream.bytes_down
        assert relay.server.total_traffic().bytes_down == len(names) * len(published.bundle)


@on_loop
async def test_devices_are_served_while_upstream_is_away_and_get_what_is_new_when_it_is_back(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    async with place.relay() as relay, place.device("pi-1", relay.port) as device:
        async with place.learner() as (log, learner):
            first = publish(log)
            learner.announce(first)
            assert await next_policy(device, "pi-1") == first.bundle
        await until(lambda: not relay.upstream.connected)
        assert await next_policy(device, "pi-1") == first.bundle
        async with place.learner() as (log, learner):
            waiting = asyncio.ensure_future(next_policy(device, "pi-1", have=first.version))
            second = publish(log)
            learner.announce(second)
            assert await waiting == second.bundle


@on_loop
async def test_a_relay_that_starts_without_upstream_serves_what_its_disk_holds(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    async with place.learner() as (log, _):
        published = publish(log)
    async with place.learner(), place.relay() as relay:
        await until(lambda: relay.server.offered_version == published.version)
    async with place.relay() as relay, place.device("pi-1", relay.port) as device:
        assert await next_policy(device, "pi-1") == published.bundle


@on_loop
async def test_what_changed_is_all_that_comes_upstream_and_a_damaged_delta_is_mended(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    async with place.learner() as (log, learner), place.relay() as relay:
        first = publish(log, weights=4096)
        learner.announce(first)
        await until(lambda: learner.active("site-a") is not None)
        second = publish(log, weights=4096)
        before = relay.upstream.bytes_down
        learner.announce(second)
        await until(lambda: relay.server.offered_version == second.version)
        assert learner.kinds[-1] == pb.PAYLOAD_KIND_DELTA
        assert relay.upstream.bytes_down - before < len(second.bundle) / 2
        assert relay.store.newest() == second
        await until(
            lambda: (told := learner.active("site-a")) is not None and told.base.version == 2
        )
        learner.tampers = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        third = publish(log, weights=4096)
        learner.announce(third)
        await until(lambda: relay.upstream.refused > 0)
        learner.tampers = lambda data: data
        await until(lambda: relay.server.offered_version == third.version)
        assert learner.kinds[-1] == pb.PAYLOAD_KIND_UNSPECIFIED


@on_loop
async def test_a_tampered_policy_never_reaches_a_device(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.learner() as (log, learner), place.relay() as relay:
        learner.tampers = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        learner.announce(publish(log))
        await until(lambda: relay.upstream.refused == 1)
        assert relay.server.offered_version == 0
        learner.tampers = lambda data: data
        honest = publish(log)
        learner.announce(honest)
        async with place.device("pi-1", relay.port) as device:
            assert await next_policy(device, "pi-1") == honest.bundle


@on_loop
async def test_an_upstream_that_went_back_in_time_rolls_no_device_back(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.relay() as relay:
        async with place.learner() as (log, learner):
            published = [publish(log) for _ in range(3)][-1]
            learner.announce(published)
            await until(lambda: relay.server.offered_version == published.version)
        async with place.learner(directory="lost") as (log, learner):
            await until(lambda: relay.upstream.connected and learner.watchers == 1)
            learner.announce(publish(log))  # version 1, signed by the fleet's own key
            for _ in range(2):
                publish(log)
            newer = publish(log)
            learner.announce(newer)
            await until(lambda: relay.server.offered_version == newer.version)
        assert [info.manifest.version for info in relay.store.list()] == [4, 3]


@on_loop
async def test_what_devices_act_with_is_told_upstream_the_latest_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.relay() as relay, place.device("pi-1", relay.port) as device:
        for version in (1, 2, 3):
            await device.ReportActive(
                pb.ReportActiveRequest(
                    fleet=FLEET, device_id="pi-1", run_id=RUN_ID, version=version, digest=DIGEST
                )
            )
        assert len(relay.reports) == 1
        async with place.learner() as (_, learner):
            await until(lambda: learner.active("pi-1") is not None)
            active = learner.active("pi-1")
            assert active is not None
            assert (active.base.version, active.run_id) == (3, RUN_ID)


@on_loop
async def test_a_device_reports_under_its_own_name_and_a_relay_for_those_behind_it(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    place.pki.issue("site-b", Role.RELAY)
    request = pb.ReportActiveRequest(
        fleet=FLEET, device_id="pi-2", run_id=RUN_ID, version=1, digest=DIGEST
    )
    async with place.relay() as relay:
        async with place.device("pi-1", relay.port) as device:
            with pytest.raises(grpc.aio.AioRpcError, match="under its own name"):
                await device.ReportActive(request)
        async with place.device("site-b", relay.port) as behind:
            await behind.ReportActive(request)


@on_loop
async def test_a_report_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with place.relay() as relay, place.device("pi-1", relay.port) as device:
        for wrong in ({"digest": b"short"}, {"run_id": bytes(17)}, {"fleet": "other"}):
            fields = {"fleet": FLEET, "run_id": RUN_ID, "digest": DIGEST, **wrong}
            with pytest.raises(grpc.aio.AioRpcError):
                await device.ReportActive(
                    pb.ReportActiveRequest(device_id="pi-1", version=1, **fields)  # type: ignore[arg-type]
                )
        assert len(relay.reports) == 0


@on_loop
async def test_a_device_is_no_relay_whatever_it_serves(tmp_path: Path) -> None:
    place = Place(tmp_path)
    own = Identity.load(place.pki.issue("pi-9", Role.DEVICE))
    key = load_signing_key(place.learner_identity)
    with PolicyLog(tmp_path / "log", key, FLEET) as log:
        async with (
            GrpcServer("127.0.0.1", 0, own, [ParameterServer(log, fleet=FLEET)]) as server,
            place.device("pi-1", server.port) as device,
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=r"(?i)handshake|certificate|verif"):
                await next_policy(device, "pi-1")


@on_loop
async def test_a_delegates_policies_go_through_a_relay_once_its_clock_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "CLOCK_AGAIN_S", 0.01)
    place, ahead_s = Place(tmp_path), [1e9]
    learner = place.learner_identity.directory
    office = DelegationOffice(
        place.pki.directory / "policy.key", FLEET, place.pki.policy_public_key
    )
    install(learner / "delegate.key", office.delegate(present=learner / "delegate.key"))
    (learner / "policy.key").unlink()
    async with (
        place.learner() as (log, server),
        place.relay(lambda: time.time() + ahead_s[0]) as relay,
        place.device("pi-1", relay.port) as device,
    ):
        waiting = asyncio.ensure_future(next_policy(device, "pi-1"))
        first = publish(log)
        server.announce(first)
        await until(lambda: relay.upstream.refused >= 3)  # it asks again and again
        ahead_s[0] = 0.0
        assert await waiting == first.bundle
        second = publish(log)
        server.announce(second)
        await until(lambda: relay.store.highest_version == 2)
        assert server.kinds[-1] == pb.PAYLOAD_KIND_DELTA
        assert relay.store.newest() == second
