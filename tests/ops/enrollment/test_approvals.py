"""Enrolment over real TLS: devices that come without a token, and those that ask too often."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from enrolling import run
from office import HOST, Office

from edge_agent.enrollment.enrollment import EnrollmentRefused, enroll
from edge_agent.enrollment.pinned_channel import PinnedChannel
from shoal.errors import ConnectionFailed, DeadlineExceeded
from shoal.identity import Identity
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub
from shoalctl.cli import run as command
from shoalctl.enrollment.store import APPROVED, DENIED


def test_a_device_without_a_token_waits_until_an_operator_approves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded, match="shoal enroll approve pi-1"):
                await office.enroll(tmp_path / "pi-1")
            (request,) = office.store.requests()
            told: list[str] = []
            with pytest.raises(DeadlineExceeded):
                await enroll(office.seed(tmp_path / "pi-1"), wait_s=0.0, tell=told.append)
            assert request.key_digest.hex()[:16] in told[-1]
            assert (request.device_id, request.state, request.address) == ("pi-1", "pending", HOST)
            office.authority.decide("pi-1", APPROVED)
            await office.enroll(tmp_path / "pi-1")
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            assert office.events() == ["requested", "approved", "enrolled"]
            assert office.store.requests() == []

    run(scenario())


def test_operators_commands_work_beside_the_running_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shoal(*arguments: str) -> str:
        assert command(["enroll", *arguments, "--dir", str(tmp_path / "fleet")]) == 0
        return capsys.readouterr().out

    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            assert "pi-1  pending" in await asyncio.to_thread(shoal, "requests")
            await asyncio.to_thread(shoal, "approve", "pi-1")
            await office.enroll(tmp_path / "pi-1")
            assert "pi-1  member  operator" in await asyncio.to_thread(shoal, "ls")
            token = (await asyncio.to_thread(shoal, "token", "create", "--ttl", "5m")).strip()
            with pytest.raises(EnrollmentRefused):
                await office.enroll(tmp_path / "other" / "pi-1", token=token)
            said = json.loads(await asyncio.to_thread(shoal, "events", "-o", "json"))
            assert said["counters"]["refused.name_taken"] == 1
            newest = said["items"][0]
            assert (newest["device_id"], newest["reason"]) == ("pi-1", "name_taken")

    run(scenario())


def test_an_approval_is_for_the_key_that_asked_and_for_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            office.authority.decide("pi-1", APPROVED)
            with pytest.raises(EnrollmentRefused, match="another device waits"):
                await office.enroll(tmp_path / "thief" / "pi-1")
            await office.enroll(tmp_path / "pi-1")
            assert office.events()[-2:] == ["refused.name_requested", "enrolled"]

    run(scenario())


def test_a_denied_device_is_turned_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            office.authority.decide("pi-1", DENIED)
            with pytest.raises(EnrollmentRefused, match="denied"):
                await office.enroll(tmp_path / "pi-1")

    run(scenario())


def test_requests_are_bounded_and_forgotten_after_a_day(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, max_requests=1)
        ) as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            with pytest.raises(ConnectionFailed, match="too many devices wait"):
                await office.enroll(tmp_path / "pi-2")
            office.clock.ahead_s = 86_401.0
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-2")
            assert [each.device_id for each in office.store.requests()] == ["pi-2"]

    run(scenario())


def test_a_fleet_may_admit_nobody_without_a_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, max_requests=0)
        ) as office:
            with pytest.raises(EnrollmentRefused, match="nobody without a token"):
                await office.enroll(tmp_path / "pi-1")
            assert office.events() == ["refused.token_missing"]
            await office.enroll(tmp_path / "pi-1", token=office.token())

    run(scenario())


def test_an_address_that_asks_too_often_is_slowed_down_and_makes_no_events(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, requests_per_minute=0.001)
        ) as office:
            root = (office.config.directory / "ca.pem").read_text()
            async with PinnedChannel(office.address, root) as channel:
                stub = EnrollmentStub(channel.grpc)

                async def flood() -> None:
                    for _ in range(100):
                        await stub.Begin(pb.BeginRequest(), timeout=20)

                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await flood()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert office.events() == []

    run(scenario())
