"""A device's whole membership, with real processes: enrolled, renewed, revoked, and acting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import HOST, free_port
from child_process import Process
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.durable_file import write_durably
from shoal.identity import Identity
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.pki.registry import DeviceRegistry

SHOAL = (sys.executable, "-m", "shoalctl.cli")
WAIT_S = 60.0


def shoal(*arguments: str) -> str:
    return subprocess.run(
        [*SHOAL, *arguments], capture_output=True, text=True, check=True, timeout=WAIT_S
    ).stdout.strip()


def set_port(file: Path, port: int) -> None:
    lines = file.read_text().splitlines()
    head = lines.index("[addresses]") if "[addresses]" in lines else len(lines)
    lines[:head] = [
        f"port = {port}" if line.startswith("port =") else line for line in lines[:head]
    ]
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def start(stack: ExitStack, *arguments: str) -> Process:
    process = Process([*SHOAL, *arguments])
    stack.callback(process.stop)
    return process


@pytest.mark.timeout(240)
def test_a_device_enrols_acts_renews_its_certificate_and_acts_on_when_it_is_revoked(
    tmp_path: Path, stack: ExitStack
) -> None:
    fleet = tmp_path / "fleet"
    make_fleet(fleet, FleetPlan("reef"))
    mqtt_port, enroll_port = free_port(), free_port()
    set_port(fleet / "broker.toml", mqtt_port)
    set_port(fleet / "enrollment.toml", enroll_port)
    text = (fleet / "enrollment.toml").read_text()
    # An hour's certificate is dated back by minutes: one of a minute is due at once.
    text = text.replace("[addresses]", "certificate_lifetime_h = 0.0167\n\n[addresses]")
    text = text.replace(f'"{HOST}:8444"', f'"{HOST}:{enroll_port}"')
    (fleet / "enrollment.toml").write_text(text)

    start(stack, "broker", "run", "--config", str(fleet / "broker.toml")).wait_for_line(
        "broker_ready"
    )
    start(stack, "enroll", "serve", "--dir", str(fleet)).wait_for_line("enrollment_ready")
    (tmp_path / "token").write_text(shoal("enroll", "token", "create", "--dir", str(fleet)))
    fingerprint = shoal("enroll", "fingerprint", "--dir", str(fleet))
    answer = shoal(
        *("agent", "enroll", "--server", f"{HOST}:{enroll_port}", "--name", "pi-7"),
        *("--ca-fingerprint", fingerprint, "--token-file", str(tmp_path / "token")),
        *("--identity", str(tmp_path / "identity"), "--wait-s", "30"),
    )
    assert json.loads(answer)["items"][0]["device_id"] == "pi-7"
    assert not (tmp_path / "token").exists()
    assert Identity.load(tmp_path / "identity").name == "pi-7"

    agent = start(
        stack,
        *("agent", "run", "--fleet", "reef", "--identity", str(tmp_path / "identity")),
        *("--state-dir", str(tmp_path / "state"), "--env", "CartPole-v1"),
        *("--broker", f"{HOST}:{mqtt_port}", "--server", f"{HOST}:{free_port()}"),
        *("--set", 'actor.before_policy="safe_action"'),
    )
    agent.wait_for_line('"broker_connected"', timeout_s=WAIT_S)
    agent.wait_for_line('"certificate_renewed"', timeout_s=WAIT_S)
    agent.wait_for_line('"connections": 2', timeout_s=WAIT_S)

    seen = len(agent.lines)
    shoal("enroll", "revoke", "pi-7", "--dir", str(fleet))
    agent.wait_for_line('"broker_lost"', start=seen, timeout_s=WAIT_S)
    assert not agent.ended  # nothing that the network does ends an agent
    assert agent.stop() == 0
    events = json.loads(shoal("enroll", "events", "--dir", str(fleet), "-o", "json"))
    assert events["counters"]["enrolled"] == 1
    assert events["counters"]["renewed"] >= 1
    assert events["counters"]["revoked"] == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("days", "trouble"), [(60, "certificate_not_yet_valid"), (-60, "certificate_expired")]
)
def test_a_device_whose_certificate_and_clock_disagree_says_so_acts_on_and_recovers(
    tmp_path: Path, stack: ExitStack, days: int, trouble: str
) -> None:
    """Dates in the future are what a clock that is behind sees, and dates in the past one ahead."""
    fleet = tmp_path / "fleet"
    pki = make_fleet(fleet, FleetPlan("reef"))
    mqtt_port = free_port()
    set_port(fleet / "broker.toml", mqtt_port)
    DeviceRegistry(fleet / "devices").add("pi-7")
    elsewhen = FleetPki.load(fleet, clock=lambda: datetime.now(UTC) + timedelta(days=days))
    identity = elsewhen.issue("pi-7", Role.DEVICE, lifetime=timedelta(days=10))
    start(stack, "broker", "run", "--config", str(fleet / "broker.toml")).wait_for_line(
        "broker_ready"
    )
    agent = start(
        stack,
        *("agent", "run", "--fleet", "reef", "--identity", str(identity)),
        *("--state-dir", str(tmp_path / "state"), "--env", "CartPole-v1"),
        *("--broker", f"{HOST}:{mqtt_port}", "--server", f"{HOST}:{free_port()}"),
        *("--set", 'actor.before_policy="safe_action"'),
    )
    line = json.loads(agent.wait_for_line(f'"{trouble}"'))
    assert "acting and spooling go on" in line["message"]
    agent.wait_for_line('"broker_lost"', timeout_s=WAIT_S)
    assert not agent.ended
    # The clock is set, or somebody renewed the certificate: now they agree.
    key = x509.load_pem_x509_certificate((identity / "cert.pem").read_bytes()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    write_durably(identity / "cert.pem", pki.certify(key, "pi-7", Role.DEVICE))
    # It tries again after a while that grew with each attempt.
    agent.wait_for_line('"broker_connected"', timeout_s=WAIT_S)
    assert agent.stop() == 0
