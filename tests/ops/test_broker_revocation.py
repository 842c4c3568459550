"""A device that was revoked is cut off the running broker, of both kinds; nobody else notices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import HOST, MOSQUITTO, WAIT_S, Client, Process, RefusedError, free_port

from shoal.config import load_config
from shoal.identity import Identity
from shoal.topics import Topics
from shoalctl.broker.broker import BrokerConfig, write_mosquitto_files
from shoalctl.cli import run
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.pki.registry import DeviceRegistry

DEVICES = ("pi-7", "pi-8")
TOPICS = Topics("reef")


@dataclass
class Running:
    """A broker of a fleet, as `Client` wants to know it."""

    pki: FleetPki
    port: int
    process: Process
    host: str = HOST

    def start(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.process.stop()

    def admit(self, device_id: str) -> None:
        raise NotImplementedError

    def revoke(self, device_id: str) -> None:
        """As an operator does."""
        certificate = self.pki.directory / "identities" / device_id / "cert.pem"
        arguments = ["--dir", str(self.pki.directory), "--certificate", str(certificate)]
        assert run(["enroll", "revoke", device_id, *arguments]) == 0


@contextmanager
def fleet_broker(directory: Path, *, mosquitto: bool) -> Iterator[Running]:
    pki = make_fleet(directory / "fleet", FleetPlan("reef"))
    for device_id in DEVICES:
        pki.issue(device_id, Role.DEVICE)
    DeviceRegistry(pki.directory / "devices").add(*DEVICES)
    config, port = pki.directory / "broker.toml", free_port()
    if mosquitto:
        assert MOSQUITTO is not None
        overrides = {"port": port, "host": HOST}
        user = "root" if os.geteuid() == 0 else None
        files = write_mosquitto_files(
            load_config(BrokerConfig, config, overrides=overrides), user=user
        )
        process = Process([MOSQUITTO, "-c", str(files.config)])
        process.wait_until_ready("running")
    else:
        shoal = [sys.executable, "-m", "shoalctl.cli"]
        process = Process([*shoal, "broker", "run", "--config", str(config), "--port", str(port)])
        process.wait_until_ready("broker_ready")
    broker = Running(pki, port, process)
    try:
        yield broker
    finally:
        broker.stop()


def test_the_embedded_broker_drops_a_revoked_device_and_does_not_let_it_back_in(
    tmp_path: Path,
) -> None:
    with (
        fleet_broker(tmp_path, mosquitto=False) as broker,
        Client(broker, "learner") as learner,
        Client(broker, "pi-7") as gone,
        Client(broker, "pi-8") as stays,
    ):
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        gone.publish(TOPICS.event("pi-7"), b"before")
        assert learner.receive().payload == b"before"
        port = stays.local_port
        broker.revoke("pi-7")
        assert gone.lost.wait(WAIT_S)
        with pytest.raises(RefusedError), Client(broker, "pi-7"):
            pass
        stays.publish(TOPICS.event("pi-8"), b"after")
        assert learner.receive().payload == b"after"
        assert stays.local_port == port


@pytest.mark.mosquitto
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_mosquitto_silences_a_revoked_device_at_once_and_does_not_let_it_back_in(
    tmp_path: Path,
) -> None:
    with (
        fleet_broker(tmp_path, mosquitto=True) as broker,
        Client(broker, "learner") as learner,
        Client(broker, "pi-7") as gone,
        Client(broker, "pi-8") as stays,
    ):
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        gone.publish(TOPICS.event("pi-7"), b"before")
        assert learner.receive().payload == b"before"
        seen = len(broker.process.lines)
        broker.revoke("pi-7")
        broker.process.wait_for_line("Reloading config", start=seen)
        gone.publish(TOPICS.event("pi-7"), b"revoked", qos=0)
        with pytest.raises(RefusedError), Client(broker, "pi-7"):
            pass
        stays.publish(TOPICS.event("pi-8"), b"after")
        assert learner.receive().payload == b"after"


@pytest.mark.parametrize("mosquitto", [False, pytest.param(True, marks=pytest.mark.mosquitto)])
def test_a_certificate_that_has_ended_or_not_begun_is_not_let_in(
    tmp_path: Path, *, mosquitto: bool
) -> None:
    if mosquitto and MOSQUITTO is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    with fleet_broker(tmp_path, mosquitto=mosquitto) as broker:
        for days in (-60, 60):
            then = datetime.now(UTC) + timedelta(days=days)
            elsewhen = FleetPki.load(broker.pki.directory, clock=then.astimezone)
            wrong = elsewhen.issue(
                "pi-8",
                Role.DEVICE,
                directory=tmp_path / f"issued{days}",
                lifetime=timedelta(days=10),
            )
            context = Identity.load(wrong).ssl_context()
            with pytest.raises(RefusedError), Client(broker, "pi-8", context=context):
                pass
        with Client(broker, "pi-8"):
            pass


def test_revoking_says_when_no_such_device_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    assert run(["enroll", "revoke", "pi-1", "--dir", str(tmp_path / "fleet")]) == 4
    assert "`shoal enroll ls`" in capsys.readouterr().err
