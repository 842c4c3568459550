"""Events over a real gRPC server with mutual TLS: who may read them, listed and watched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from sim import on_loop

from cloud_learner.fleet.event_log import EventLog
from cloud_learner.fleet.events_service import MAX_WATCHES, EventsService
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.identity import Identity
from shoal.v1 import device_pb2
from shoal.v1 import events_pb2 as pb
from shoal.v1.events_pb2_grpc import EventsStub
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 60.0


@dataclass
class Site:
    """A log that is served, and who asks."""

    pki: FleetPki
    log: EventLog
    service: EventsService
    port: int

    @asynccontextmanager
    async def asked_by(self, role: Role) -> AsyncIterator[EventsStub]:
        directory = self.pki.directory / "identities" / role
        if not directory.exists():
            self.pki.issue(role, role)
        pems = Identity(directory, role, None).read_pems()
        keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        own = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
        async with grpc.aio.secure_channel(f"localhost:{self.port}", keys, own) as channel:
            yield EventsStub(channel)


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    pki = FleetPki.create(directory / "pki", "reef")
    identity = Identity.load(pki.issue("learner", Role.LEARNER))
    log = EventLog()
    service = EventsService(log, Counter(revoked_refused=2), fleet="reef")
    async with (
        asyncio.timeout(DEADLINE_S),
        GrpcServer("127.0.0.1", 0, identity, [service]) as server,
    ):
        yield Site(pki, log, service, server.port)


def event(name: str, device_id: str = "pi-1") -> device_pb2.Event:
    return device_pb2.Event(device_id=device_id, name=name, fields={"reason": "r"})


@on_loop
async def test_events_are_listed_newest_first_with_counts(tmp_path: Path) -> None:
    async with site(tmp_path) as here, here.asked_by(Role.OPERATOR) as stub:
        for name in ("one", "two"):
            here.log.add(event(name))
        here.log.add(event("three", "pi-2"))
        answer = await stub.ListEvents(pb.ListEventsRequest(fleet="reef", limit=2))
        assert [each.event.name for each in answer.events] == ["three", "two"]
        assert answer.counters == {
            "device.one.r": 1,
            "device.two.r": 1,
            "device.three.r": 1,
            "learner.revoked_refused": 2,
        }
        of_one = pb.ListEventsRequest(fleet="reef", about="pi-1", kinds=["one.r", "three"])
        answer = await stub.ListEvents(of_one)
        assert [each.event.name for each in answer.events] == ["one"]
        assert answer.newest_place == 3


@on_loop
async def test_only_operators_may_read_them(tmp_path: Path) -> None:
    async with site(tmp_path) as here, here.asked_by(Role.BROKER) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListEvents(pb.ListEventsRequest(fleet="reef"))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.WatchEvents(pb.WatchEventsRequest(fleet="reef")).read()


@on_loop
async def test_a_watch_goes_on_from_its_place_and_from_the_start_of_another_log(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as here, here.asked_by(Role.OPERATOR) as stub:
        here.log.add(event("old"))
        after = pb.WatchEventsRequest(fleet="reef", after_place=1, log_id=here.log.log_id)
        watch = stub.WatchEvents(after)
        reading = asyncio.ensure_future(watch.read())
        await asyncio.sleep(0)
        here.log.add(event("new"))
        assert (await reading).event.event.name == "new"
        elsewhere = pb.WatchEventsRequest(fleet="reef", after_place=9, log_id=bytes(16))
        assert (await stub.WatchEvents(elsewhere).read()).event.event.name == "old"


@on_loop
async def test_watches_are_bounded_and_end_when_the_learner_stops(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as here,
        here.asked_by(Role.OPERATOR) as stub,
        here.asked_by(Role.OPERATOR) as another,  # a connection has but so many streams
    ):
        here.log.add(event("first"))
        request = pb.WatchEventsRequest(fleet="reef")
        watches = [stub.WatchEvents(request) for _ in range(MAX_WATCHES)]
        for watch in watches:
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await another.WatchEvents(request).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        here.service.stop_streams()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watches[0].read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
