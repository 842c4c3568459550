"""A device keeps its certificate valid, and says what is wrong when it can't: over real TLS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from office import Clock, Office

from edge_agent.enrollment.renewal import Renewer
from edge_agent.enrollment.validity import Trouble
from edge_agent.events import Events
from shoal.identity import Identity
from shoalctl.enrollment.config import EnrollmentConfig
from shoalctl.pki.pki import FleetPki, Role

DEADLINE_S = 100.0
HOUR_S = 3600.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


def an_hour(config: EnrollmentConfig) -> EnrollmentConfig:
    """Certificates of an hour, and a server that devices find where it listens."""
    return replace(
        config, certificate_lifetime_h=1.0, addresses=replace(config.addresses, enrollment="")
    )


def serial(identity: Path) -> int:
    return x509.load_pem_x509_certificate((identity / "cert.pem").read_bytes()).serial_number


class Device:
    """A renewer and what it says."""

    def __init__(self, identity: Path, clock: Clock) -> None:
        self.events = Events("pi-1", bytes(16), clock=clock)
        self.renewed = 0
        self.renewer = Renewer(
            Identity.load(identity),
            self.events,
            on_renewed=self.count,
            clock=clock,
            rng=random.Random(0),
        )

    def count(self) -> None:
        self.renewed += 1

    def said(self) -> list[str]:
        return [event.name for event in self.events.take()]


def test_a_certificate_is_left_alone_until_two_thirds_of_its_life_and_then_renewed(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            first = serial(tmp_path / "pi-1")
            clock = office.clock
            device = Device(tmp_path / "pi-1", clock)
            clock.ahead_s = 0.5 * HOUR_S
            await device.renewer.look()
            assert serial(tmp_path / "pi-1") == first
            clock.ahead_s = 0.75 * HOUR_S
            await device.renewer.look()
            assert serial(tmp_path / "pi-1") != first
            assert device.said() == ["certificate_renewed"]
            await device.renewer.look()
            assert (device.renewed, device.renewer.renewals) == (1, 1)
            assert office.events() == ["enrolled", "renewed"]

    run(scenario())


def test_a_service_is_begun_again_with_the_new_certificate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            device = Device(tmp_path / "pi-1", office.clock)
            seen: list[int] = []
            begun = asyncio.Event()

            async def service() -> None:
                seen.append(serial(tmp_path / "pi-1"))
                begun.set()
                await asyncio.Event().wait()

            async def restarting() -> None:
                await device.renewer.restarting(service)()

            running = asyncio.create_task(restarting())
            await begun.wait()
            begun.clear()
            office.clock.ahead_s = 0.75 * HOUR_S
            await device.renewer.look()
            await begun.wait()
            assert len(set(seen)) == 2
            assert seen[-1] == serial(tmp_path / "pi-1")
            running.cancel()

    run(scenario())


def test_a_clock_that_is_behind_is_said_and_recovered_from(tmp_path: Path) -> None:
    """As after a power cut on a board without a clock battery: it is 1970."""

    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            first = serial(tmp_path / "pi-1")
            clock = Clock(ahead_s=-office.clock())
            device = Device(tmp_path / "pi-1", clock)
            await device.renewer.look()
            (event,) = device.events.take()
            assert event.name == "clock_wrong"
            assert "behind the fleet's: set it" in event.message
            await device.renewer.look()
            assert device.said() == []  # once
            assert device.renewer.trouble is Trouble.CLOCK
            clock.ahead_s = 0.0
            await device.renewer.look()
            assert device.said() == ["identity_valid"]
            assert serial(tmp_path / "pi-1") == first

    run(scenario())


def test_a_clock_that_is_ahead_is_said_and_no_certificate_is_wasted_on_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            clock = Clock(ahead_s=400 * 24 * HOUR_S)
            device = Device(tmp_path / "pi-1", clock)
            await device.renewer.look()
            (event,) = device.events.take()
            assert event.name == "clock_wrong"
            assert "400 days ahead of" in event.message
            assert office.events() == ["enrolled"]

    run(scenario())


def test_a_certificate_that_ended_while_the_device_slept_is_renewed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            office.clock.ahead_s = 48 * HOUR_S
            device = Device(tmp_path / "pi-1", office.clock)
            await device.renewer.look()
            assert "certificate_renewed" in device.said()

    run(scenario())


def test_a_certificate_that_begins_in_the_future_means_that_the_clock_is_behind(
    tmp_path: Path,
) -> None:
    later = datetime.now(UTC) + timedelta(days=30)
    pki = FleetPki.create(tmp_path / "pki", "reef", clock=lambda: later)
    identity = pki.issue("pi-1", Role.DEVICE)

    async def scenario() -> None:
        device = Device(identity, Clock())
        await device.renewer.look()
        (event,) = device.events.take()
        assert event.name == "certificate_not_yet_valid"
        assert "clock, which must be behind" in event.message

    run(scenario())


def test_an_expired_certificate_of_a_device_without_a_server_to_ask_is_said(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = pki.issue("pi-1", Role.DEVICE, lifetime=timedelta(seconds=-30))

    async def scenario() -> None:
        device = Device(identity, Clock())
        await device.renewer.look()
        assert device.said() == ["certificate_expired"]

    run(scenario())


def test_while_the_server_is_away_renewal_is_tried_again_and_said_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
        clock = Clock(ahead_s=0.75 * HOUR_S)
        device = Device(tmp_path / "pi-1", clock)
        await device.renewer.look()
        await device.renewer.look()
        assert device.said() == ["renewal_failed"]

    run(scenario())


def test_a_revoked_device_is_told_so_once_and_asks_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet", change=an_hour) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            office.authority.revoke("pi-1")
            office.clock.ahead_s = 0.75 * HOUR_S
            device = Device(tmp_path / "pi-1", office.clock)
            await device.renewer.look()
            await device.renewer.look()
            assert device.said() == ["renewal_refused"]
            assert office.events().count("refused.revoked") == 1

    run(scenario())


def test_a_certificate_that_somebody_else_put_in_place_is_seen(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", "reef")
    identity = pki.issue("pi-1", Role.DEVICE, lifetime=timedelta(seconds=-30))
    other = pki.issue("pi-1", Role.DEVICE, directory=tmp_path / "other")

    async def scenario() -> None:
        device = Device(identity, Clock())
        await device.renewer.look()
        (identity / "cert.pem").write_bytes(b"half of it")
        await device.renewer.look()
        (identity / "cert.pem").write_bytes((other / "cert.pem").read_bytes())
        await device.renewer.look()
        assert device.said() == ["certificate_expired", "renewal_failed", "identity_valid"]

    run(scenario())
