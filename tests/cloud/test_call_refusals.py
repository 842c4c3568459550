"""Every call that is refused is counted and told, whatever kind of call it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fleet_world import World
from sim import on_loop

from cloud_learner.fleet.event_log import Query
from cloud_learner.serving.call_refusals import REASONS, CallRefusal, CallRefusals
from cloud_learner.serving.grpc_server import Context, GrpcServer, refuse, require_fleet
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role

KINDS = ("Single", "Yields", "Writes")


class Refuses:
    """One call of each kind, that ends with the status it is asked for; "OK" answers."""

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Single": grpc.unary_unary_rpc_method_handler(self.single),
            "Yields": grpc.unary_stream_rpc_method_handler(self.yields),
            "Writes": grpc.unary_stream_rpc_method_handler(self.writes),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", handlers),))

    def stop_streams(self) -> None:
        """Nothing here is stopped."""

    async def single(self, request: bytes, context: Context) -> bytes:
        if request != b"OK":
            if request == b"pond":
                await require_fleet(context, "pond", "reef")
            await refuse(context, grpc.StatusCode[request.decode()], "because")
        return b"done"

    async def yields(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"begun"
        yield await self.single(request, context)

    async def writes(self, request: bytes, context: Context) -> None:
        await context.write(b"begun")
        await context.write(await self.single(request, context))


async def call(channel: grpc.aio.Channel, kind: str, status: str) -> None:
    if kind == "Single":
        await channel.unary_unary(f"/S/{kind}", None, None)(status.encode())
        return
    async for _ in channel.unary_stream(f"/S/{kind}", None, None)(status.encode()):
        pass


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_a_refused_call_is_counted_and_told_with_the_callers_name(
    kind: str, tmp_path: Path
) -> None:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    learner, device = (
        Identity.load(pki.issue(name, role))
        for name, role in (("learner", Role.LEARNER), ("pi-1", Role.DEVICE))
    )
    counters: Counter[str] = Counter()
    told: list[CallRefusal] = []
    refusals = CallRefusals(counters, told.append)
    pems = device.read_pems()
    keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    async with (
        asyncio.timeout(60),
        GrpcServer(
            "127.0.0.1", 0, learner, [Refuses()], interceptors=refusals.interceptors
        ) as server,
        grpc.aio.secure_channel(f"localhost:{server.port}", keys) as channel,
    ):
        await call(channel, kind, "OK")
        assert told == []
        for status in (*REASONS, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, kind, status.name)
            assert caught.value.code() is status
        with pytest.raises(grpc.aio.AioRpcError):
            await call(channel, kind, "pond")
    other = told.pop()
    assert (other.reason, "'pond'" in other.detail) == ("wrong_fleet", True)
    assert told == [CallRefusal("pi-1", reason, "because") for reason in REASONS.values()]
    reasons = (*REASONS.values(), "wrong_fleet")
    assert counters == {f"calls_refused_{reason}": 1 for reason in reasons}


@on_loop
async def test_refused_calls_are_events_now_and_then_and_make_no_device() -> None:
    world = World()
    for _ in range(5):
        world.fleet.note_call_refused(CallRefusal("pi-7", "not_permitted", "no"))
    world.now_s += 61.0
    world.fleet.note_call_refused(CallRefusal("pi-7", "not_permitted", "no"))
    world.fleet.note_call_refused(CallRefusal("operator", "wrong_fleet", "no"))
    found = world.fleet.log.newest(Query(), limit=10)
    assert [(each.about, each.kind, each.event.fields["count"]) for each in found] == [
        ("operator", "call_refused.wrong_fleet", "1"),
        ("pi-7", "call_refused.not_permitted", "5"),
        ("pi-7", "call_refused.not_permitted", "1"),
    ]
    assert {each.source for each in found} == {"learner"}
    assert world.fleet.devices() == []
