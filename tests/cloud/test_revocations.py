"""Who was revoked is turned away by the learner's gRPC services, in the middle of a call too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from cloud_learner.serving.grpc_server import Context, GrpcServer, peer_name
from cloud_learner.serving.revocations import Revocations
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 60.0
STREAMS = ("Yields", "Writes", "YieldsTo")


class Service:
    """One call of each kind; its streams send one message and go on for ever."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.all_ended = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Who": grpc.unary_unary_rpc_method_handler(self.who),
            "Yields": grpc.unary_stream_rpc_method_handler(self.yields),
            "Writes": grpc.unary_stream_rpc_method_handler(self.writes),
            "YieldsTo": grpc.stream_stream_rpc_method_handler(self.yields),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", handlers),))

    def stop_streams(self) -> None:
        """Nothing here is stopped."""

    async def who(self, request: bytes, context: Context) -> bytes:
        return peer_name(context).encode()

    async def yields(self, request: object, context: Context) -> AsyncIterator[bytes]:
        try:
            yield b"begun"
            await asyncio.Event().wait()
        finally:
            self.end("yields")

    async def writes(self, request: bytes, context: Context) -> None:
        try:
            await context.write(b"begun")
            await asyncio.Event().wait()
        finally:
            self.end("writes")

    def end(self, name: str) -> None:
        self.ended.append(name)
        if len(self.ended) == len(STREAMS):
            self.all_ended.set()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


@pytest.fixture
def pki(tmp_path: Path) -> FleetPki:
    return FleetPki.create(tmp_path / "pki", "reef")


def revoke(pki: FleetPki, path: Path, *identities: Path) -> None:
    serials = [
        x509.load_pem_x509_certificate((each / "cert.pem").read_bytes()).serial_number
        for each in identities
    ]
    new = path.with_suffix(".new")
    new.write_bytes(pki.revocation_list(dict.fromkeys(serials, datetime.now(UTC))))
    new.replace(path)


def channel(port: int, identity: Path) -> grpc.aio.Channel:
    pems = Identity.load(identity).read_pems()
    keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    return grpc.aio.secure_channel(f"localhost:{port}", keys)


async def who(port: int, identity: Path) -> bytes:
    async with channel(port, identity) as open_channel:
        answer: bytes = await open_channel.unary_unary("/S/Who", None, None)(b"", timeout=20)
        return answer


def test_a_revoked_device_is_cut_off_in_the_middle_of_its_calls_and_others_are_not(
    pki: FleetPki, tmp_path: Path
) -> None:
    crl = tmp_path / "revoked.crl"
    revoke(pki, crl)
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    gone, stays = pki.issue("pi-1", Role.DEVICE), pki.issue("pi-2", Role.DEVICE)

    async def scenario() -> None:
        revocations, service = Revocations(crl, learner), Service()
        async with (
            GrpcServer(
                "127.0.0.1", 0, learner, [service], interceptors=revocations.interceptors
            ) as server,
            channel(server.port, gone) as first,
            channel(server.port, stays) as second,
        ):
            cut: list[Any] = [
                first.unary_stream("/S/Yields", None, None)(b""),
                first.unary_stream("/S/Writes", None, None)(b""),
                first.stream_stream("/S/YieldsTo", None, None)(None),
            ]
            kept = second.unary_stream("/S/Yields", None, None)(b"")
            for call in (*cut, kept):
                assert await call.read() == b"begun"
            assert await who(server.port, gone) == b"pi-1"

            revoke(pki, crl, gone)
            revocations.look(crl)

            for call in cut:
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "pi-1 was revoked" in (await call.details() or "")
            await service.all_ended.wait()
            with pytest.raises(grpc.aio.AioRpcError, match="was revoked: ask"):
                await who(server.port, gone)
            late = first.unary_stream("/S/Yields", None, None)(b"")
            assert await late.code() is grpc.StatusCode.UNAUTHENTICATED
            assert revocations.counters == {"revoked_refused": 2, "revoked_ended": 3}
            assert not kept.done()
            assert await who(server.port, stays) == b"pi-2"
            kept.cancel()

    run(scenario())


def test_a_call_that_its_client_gives_up_is_ended_in_the_service_too(
    pki: FleetPki, tmp_path: Path
) -> None:
    crl = tmp_path / "revoked.crl"
    revoke(pki, crl)
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    device = pki.issue("pi-1", Role.DEVICE)

    async def scenario() -> None:
        revocations, service = Revocations(crl, learner), Service()
        async with GrpcServer(
            "127.0.0.1", 0, learner, [service], interceptors=revocations.interceptors
        ) as server:
            async with channel(server.port, device) as open_channel:
                for name in STREAMS[:2]:
                    call = open_channel.unary_stream(f"/S/{name}", None, None)(b"")
                    assert await call.read() == b"begun"
                last: Any = open_channel.stream_stream("/S/YieldsTo", None, None)(None)
                assert await last.read() == b"begun"
            await service.all_ended.wait()
        assert not revocations._calls
        assert not revocations.counters

    run(scenario())


def test_the_list_is_looked_at_while_the_server_runs(pki: FleetPki, tmp_path: Path) -> None:
    crl = tmp_path / "revoked.crl"
    revoke(pki, crl)
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    gone = pki.issue("pi-1", Role.DEVICE)

    async def scenario() -> None:
        revocations = Revocations(crl, learner)
        async with GrpcServer(
            "127.0.0.1", 0, learner, [Service()], interceptors=revocations.interceptors
        ) as server:
            following = asyncio.create_task(revocations.follow())
            async with channel(server.port, gone) as first:
                call = first.unary_stream("/S/Yields", None, None)(b"")
                assert await call.read() == b"begun"
                revoke(pki, crl, gone)
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            following.cancel()

    run(scenario())


def test_a_call_that_ends_by_itself_ends_as_it_would_without_a_list(
    pki: FleetPki, tmp_path: Path
) -> None:
    crl = tmp_path / "revoked.crl"
    revoke(pki, crl)
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    device = pki.issue("pi-1", Role.DEVICE)

    class Counting(Service):
        async def yields(self, request: object, context: Context) -> AsyncIterator[bytes]:
            for number in range(3):
                yield bytes([number])
            if request == b"abort":
                await context.abort(grpc.StatusCode.NOT_FOUND, "not here")

    async def scenario() -> None:
        revocations = Revocations(crl, learner)
        async with (
            GrpcServer(
                "127.0.0.1", 0, learner, [Counting()], interceptors=revocations.interceptors
            ) as server,
            channel(server.port, device) as open_channel,
        ):
            call = open_channel.unary_stream("/S/Yields", None, None)(b"")
            assert [part async for part in call] == [b"\0", b"\1", b"\2"]
            call = open_channel.unary_stream("/S/Yields", None, None)(b"abort")
            assert [await call.read() for _ in range(3)] == [b"\0", b"\1", b"\2"]
            assert await call.code() is grpc.StatusCode.NOT_FOUND
            assert await call.details() == "not here"

    run(scenario())


def test_a_list_that_is_damaged_or_anothers_changes_nothing(pki: FleetPki, tmp_path: Path) -> None:
    crl, learner = tmp_path / "revoked.crl", Identity.load(pki.issue("learner", Role.LEARNER))
    gone = pki.issue("pi-1", Role.DEVICE)
    serial = x509.load_pem_x509_certificate((gone / "cert.pem").read_bytes()).serial_number
    revoke(pki, crl, gone)

    async def scenario() -> None:
        revocations = Revocations(crl, learner)
        assert revocations.is_revoked(serial)
        foreign = FleetPki.create(tmp_path / "foreign", "reef").revocation_list({})
        for content in (b"", b"damaged", foreign):
            crl.write_bytes(content)
            revocations.look(crl)
            assert revocations.is_revoked(serial)
        crl.unlink()
        revocations.look(crl)
        assert revocations.is_revoked(serial)
        revoke(pki, crl)
        revocations.look(crl)
        assert not revocations.is_revoked(serial)

    run(scenario())


def test_a_server_does_not_start_without_the_list_it_was_told_of(
    pki: FleetPki, tmp_path: Path
) -> None:
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    with pytest.raises(IdentityError, match=r"revoked\.crl"):
        Revocations(tmp_path / "revoked.crl", learner)
    assert Revocations(None, learner).interceptors == ()
