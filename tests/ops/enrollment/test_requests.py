"""Enrolment over real TLS: requests that were recorded, forged or sent to the wrong server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from enrolling import ask, new_key, refusal, run, send
from office import Office

from edge_agent.enrollment.enrollment import enroll
from edge_agent.enrollment.pinned_channel import PinnedChannel
from shoal.endpoint import Endpoint
from shoal.errors import ConnectionFailed, IdentityError
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub


def test_a_recorded_enrolment_is_worth_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            request = await ask(office, "pi-1", office.token(uses=5))
            assert (await send(office, request)).HasField("enrolled")
            with pytest.raises(grpc.aio.AioRpcError, match="answered before"):
                await send(office, request)
            assert office.events() == ["enrolled", "refused.challenge"]

    run(scenario())


def test_a_challenge_that_was_never_given_out_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await refusal(office, "pi-1", office.token(), challenge=bytes(32))
            assert office.events() == ["refused.challenge"]

    run(scenario())


def test_a_request_for_a_key_that_its_sender_does_not_hold_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            error = await refusal(office, "pi-1", office.token(), signer=new_key())
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert office.events() == ["refused.proof"]
            assert office.store.tokens()[0].used == 0

    run(scenario())


def test_a_token_can_not_be_taken_from_one_request_into_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            request = await ask(office, "pi-1", "")
            request.token = office.token()
            with pytest.raises(grpc.aio.AioRpcError, match="not signed by the key"):
                await send(office, request)

    run(scenario())


@pytest.mark.parametrize("csr", [b"", b"not a request", bytes(4097)])
def test_a_malformed_request_is_refused(tmp_path: Path, csr: bytes) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            error = await refusal(office, "pi-1", office.token(), csr=csr)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert office.events() == ["refused.malformed"]

    run(scenario())


def test_a_server_of_another_ca_is_told_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            seed = office.seed(tmp_path / "pi-1", token=office.token())
            wrong = replace(seed, fingerprint="0" * 64)
            with pytest.raises(IdentityError, match="fingerprint is wrong; no token was sent"):
                await enroll(wrong, wait_s=0.0, tell=lambda _line: None)
            assert office.events() == []
            # The key waits for a better seed.
            assert not (tmp_path / "pi-1").exists()
            assert (await enroll(seed, wait_s=0.0, tell=lambda _line: None)).device_id == "pi-1"

    run(scenario())


def test_a_pinned_ca_whose_server_serves_another_host_is_not_trusted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            root = (office.config.directory / "ca.pem").read_text()
            elsewhere = Endpoint("127.0.0.2", office.address.port)
            async with PinnedChannel(elsewhere, root) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await EnrollmentStub(channel.grpc).Begin(pb.BeginRequest(), timeout=20)
                assert channel.failure is not None

    run(scenario())


def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            seed = office.seed(tmp_path / "pi-1")
        with pytest.raises(ConnectionFailed, match="nothing listens there"):
            await enroll(seed, wait_s=0.0, tell=lambda _line: None)

    run(scenario())
