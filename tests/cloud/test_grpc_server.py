from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_learner.serving.grpc_server import (
    MAX_REQUEST_BYTES,
    Context,
    GrpcServer,
    peer_name,
    refuse,
    require_fleet,
)
from shoal.errors import ConnectionFailed
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 30.0


class Mirror:
    """A service that says who called, and one stream that only a stop ends."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Who": grpc.unary_unary_rpc_method_handler(self.who),
            "Endless": grpc.unary_stream_rpc_method_handler(self.endless),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Mirror", handlers),))

    def stop_streams(self) -> None:
        self.stopping.set()

    async def who(self, request: bytes, context: Context) -> bytes:
        if request == b"refuse":
            await refuse(context, grpc.StatusCode.NOT_FOUND, "not here: look there")
        await require_fleet(context, request.decode() or "reef", "reef")
        return peer_name(context).encode()

    async def endless(self, request: bytes, context: Context) -> None:
        await context.write(b"begun")
        await self.stopping.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")


@dataclass(frozen=True)
class Place:
    pki: FleetPki
    server: Identity

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        role = Role.DEVICE if name.startswith("pi-") else Role(name)
        return credentials(self.pki.issue(name, role))


def identity_of(directory: Path) -> Identity:
    return Identity(directory, directory.name, None)


def credentials(directory: Path, *, ca: bytes | None = None) -> grpc.ChannelCredentials:
    pems = identity_of(directory).read_pems()
    return grpc.ssl_channel_credentials(ca or pems.ca, pems.key, pems.cert)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    return Place(pki, identity_of(pki.issue("learner", Role.LEARNER)))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


async def ask_who(port: int, keys: grpc.ChannelCredentials | None, request: bytes = b"") -> bytes:
    address = f"localhost:{port}"
    channel = (
        grpc.aio.insecure_channel(address)
        if keys is None
        else grpc.aio.secure_channel(address, keys)
    )
    async with channel:
        answer: bytes = await channel.unary_unary("/Mirror/Who", None, None)(
            request, timeout=DEADLINE_S
        )
        return answer


@dataclass(frozen=True)
class Refusal:
    code: grpc.StatusCode
    details: str


async def refusal(port: int, keys: grpc.ChannelCredentials | None, request: bytes = b"") -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask_who(port, keys, request)
    return Refusal(caught.value.code(), caught.value.details() or "")


def test_the_caller_is_the_common_name_of_its_certificate(place: Place) -> None:
    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            assert server.port > 0
            for name in ("pi-1", "operator"):
                assert await ask_who(server.port, place.credentials(name)) == name.encode()

    run(scenario())


def test_without_a_certificate_of_the_fleets_ca_nobody_gets_in(
    place: Place, tmp_path: Path
) -> None:
    ca = place.server.read_pems().ca
    foreign = FleetPki.create(tmp_path / "foreign", "reef").issue("pi-1", Role.DEVICE)
    long_ago = FleetPki.load(
        place.pki.directory, clock=lambda: datetime.now(UTC) - timedelta(days=30)
    )
    expired = long_ago.issue("pi-9", Role.DEVICE, lifetime=timedelta(days=1))

    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            strangers = {
                "no certificate": grpc.ssl_channel_credentials(ca),
                "a foreign CA": credentials(foreign, ca=ca),
                "an expired certificate": credentials(expired),
                "no TLS": None,
            }
            for who, keys in strangers.items():
                error = await refusal(server.port, keys)
                assert error.code is grpc.StatusCode.UNAVAILABLE, who
            assert await ask_who(server.port, place.credentials("pi-2")) == b"pi-2"

    run(scenario())


def test_a_client_refuses_a_server_of_a_foreign_ca(place: Place, tmp_path: Path) -> None:
    foreign = FleetPki.create(tmp_path / "foreign", "reef").issue("pi-1", Role.DEVICE)

    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            error = await refusal(server.port, credentials(foreign))
            assert error.code is grpc.StatusCode.UNAVAILABLE

    run(scenario())


def test_refusals_carry_one_line_that_says_what_to_do(place: Place) -> None:
    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            keys = place.credentials("pi-1")
            error = await refusal(server.port, keys, b"refuse")
            assert error.code is grpc.StatusCode.NOT_FOUND
            assert error.details == "not here: look there"
            error = await refusal(server.port, keys, b"atoll")
            assert error.code is grpc.StatusCode.FAILED_PRECONDITION
            assert "of fleet 'reef', the call is for fleet 'atoll'" in error.details

    run(scenario())


def test_a_request_that_is_too_large_is_refused_unread(place: Place) -> None:
    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            keys = place.credentials("pi-1")
            error = await refusal(server.port, keys, bytes(MAX_REQUEST_BYTES + 1))
            assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await ask_who(server.port, keys) == b"pi-1"

    run(scenario())


def test_a_used_port_is_one_clear_line(place: Place) -> None:
    async def scenario(port: int) -> None:
        with pytest.raises(ConnectionFailed, match=f"{port}: the port is in use"):
            async with GrpcServer("127.0.0.1", port, place.server, []):
                pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run(scenario(taken.getsockname()[1]))


def test_two_learners_do_not_share_a_port(place: Place) -> None:
    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, []) as first:
            with pytest.raises(ConnectionFailed, match="in use"):
                async with GrpcServer("127.0.0.1", first.port, place.server, []):
                    pass

    run(scenario())


def test_leaving_ends_streams_and_gives_the_port_back(place: Place) -> None:
    async def scenario() -> None:
        keys = place.credentials("pi-1")
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            serving = asyncio.create_task(server.serve())
            channel = grpc.aio.secure_channel(f"localhost:{server.port}", keys)
            stream = channel.unary_stream("/Mirror/Endless", None, None)(b"", timeout=DEADLINE_S)
            assert await stream.read() == b"begun"
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close(None)
        await serving
        async with GrpcServer("127.0.0.1", server.port, place.server, [Mirror()]) as again:
            assert await ask_who(again.port, keys) == b"pi-1"

    run(scenario())


def test_serving_can_be_cancelled(place: Place) -> None:
    async def scenario() -> None:
        async with GrpcServer("127.0.0.1", 0, place.server, [Mirror()]) as server:
            serving = asyncio.create_task(server.serve())
            await ask_who(server.port, place.credentials("pi-1"))
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

    run(scenario())
