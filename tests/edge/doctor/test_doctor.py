"""`shoal agent doctor` beside a real broker, a real parameter server and a real enrolment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from brokers import free_port, nats_broker
from brokers import identity as identity_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from office import Office

from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.serving.grpc_server import GrpcServer
from edge_agent.checks.finding import Finding, Level, exit_code
from edge_agent.config import AgentConfig, BrokerConfig, EnvConfig, ServerConfig
from edge_agent.doctor.command import SCHEMA, collect
from edge_agent.doctor.doctor import Examination, look_at_slots
from edge_agent.doctor.machine import Machine
from edge_agent.enrollment.address import MEMBERSHIP_FILE, Membership
from edge_agent.events import Events
from edge_agent.slots import codec
from edge_agent.slots.state import Content, Name, Release, Slot, State, Trial
from edge_agent.spool.spool import Spool
from shoal.identity import Identity
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki

NETWORK = (
    *("broker_dns", "broker_tls", "broker"),
    *("server_dns", "server_tls", "parameter_server"),
)


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(
        "demo",
        tmp_path / "nobody",
        tmp_path / "state",
        EnvConfig("CartPole-v1"),
        broker=BrokerConfig(port=free_port()),
        parameter_server=ServerConfig(port=free_port()),
    )


@dataclass(frozen=True)
class Patient:
    """An agent's configuration, and what is found."""

    config: AgentConfig
    root: Path

    async def look(self, *, offline: bool = False) -> dict[str, Finding]:
        examination = Examination(
            offline=offline,
            samples=2,
            prefix=self.root / "opt",
            machine=Machine(self.root / "machine"),
        )
        found = await collect(self.config, examination, lambda _: None)
        return {each.name: each for each in found}


@asynccontextmanager
async def cloud(directory: Path, pki: FleetPki, port: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    learner = Identity.load(identity_of(pki, "learner"))
    with PolicyLog(directory / "policies", Ed25519PrivateKey.generate(), "demo") as log:
        service = ParameterServer(log, fleet="demo")
        async with GrpcServer("127.0.0.1", port, learner, [service]) as server:
            yield server


@contextmanager
def fleet(config: AgentConfig, tmp_path: Path) -> Iterator[Patient]:
    """A fleet whose broker runs, and a device of it."""
    pki = FleetPki.create(tmp_path / "pki", "demo")
    with nats_broker(tmp_path, devices=["pi-1"], pki=pki) as broker:
        known = BrokerConfig(host=broker.host, port=broker.port)
        yield Patient(replace(config, identity=identity_of(pki, "pi-1"), broker=known), tmp_path)


def test_a_healthy_device_has_no_fault_and_every_way_is_measured(
    config: AgentConfig, tmp_path: Path
) -> None:
    async def scenario(patient: Patient) -> dict[str, Finding]:
        pki = FleetPki.load(tmp_path / "pki")
        async with cloud(tmp_path, pki, config.parameter_server.port):
            return await patient.look()

    with fleet(config, tmp_path) as patient:
        found = asyncio.run(scenario(patient))
    faults = {name: each.detail for name, each in found.items() if each.level is Level.FAULT}
    assert faults == {}
    assert [found[name].level for name in NETWORK] == [Level.OK] * len(NETWORK)
    assert "the fleet" not in found["clock"].detail, "nobody told the time"
    for name in ("broker", "parameter_server"):
        assert found[name].figures["round_trip_ms"] > 0
        assert found[name].figures["samples"] == 2
    assert found["broker_tls"].figures["tls_ms"] > 0
    assert not (tmp_path / "state").exists(), "nothing is made"


def test_a_cloud_that_is_away_is_found_by_its_ports_and_hides_nothing_else(
    config: AgentConfig, tmp_path: Path
) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    patient = Patient(replace(config, identity=identity_of(pki, "pi-1")), tmp_path)
    found = asyncio.run(patient.look())
    levels = [found[name].level for name in NETWORK]
    assert levels == [Level.OK, Level.FAULT, Level.SKIPPED] * 2
    assert "nothing listens there" in found["broker_tls"].detail
    assert found["environment"].level is Level.OK
    assert exit_code(list(found.values())) == 2


def test_offline_leaves_the_network_out(config: AgentConfig, tmp_path: Path) -> None:
    found = asyncio.run(Patient(config, tmp_path).look(offline=True))
    assert not set(NETWORK) & set(found)
    assert found["identity"].level is Level.FAULT
    assert found["certificate"].level is Level.SKIPPED


def test_a_name_that_nobody_knows_is_the_name_servers_fault(
    config: AgentConfig, tmp_path: Path
) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    broker = replace(config.broker, host="nowhere.invalid")
    known = replace(config, identity=identity_of(pki, "pi-1"), broker=broker)
    found = asyncio.run(Patient(known, tmp_path).look())
    assert found["broker_dns"].level is Level.FAULT
    assert "check the name, and /etc/resolv.conf" in found["broker_dns"].detail
    assert found["broker"].detail == "it needs the broker_dns, which has a fault"


def test_a_broker_of_another_fleet_is_told_from_one_that_is_away(
    config: AgentConfig, tmp_path: Path
) -> None:
    other = FleetPki.create(tmp_path / "other", "demo")
    with fleet(config, tmp_path) as patient:
        stranger = replace(patient.config, identity=identity_of(other, "pi-1"))
        found = asyncio.run(Patient(stranger, tmp_path).look())
    assert "its certificate is not trusted" in found["broker_tls"].detail
    assert "ca.pem is this fleet's" in found["broker_tls"].detail


def test_a_device_that_the_broker_does_not_admit_is_told_so(
    config: AgentConfig, tmp_path: Path
) -> None:
    with fleet(config, tmp_path) as patient:
        unknown = identity_of(FleetPki.load(tmp_path / "pki"), "pi-9")
        found = asyncio.run(Patient(replace(patient.config, identity=unknown), tmp_path).look())
    assert found["broker_tls"].level is Level.OK
    assert (found["broker"].level, found["broker"].exit_code) == (Level.FAULT, 2)
    assert "does not admit pi-9" in found["broker"].detail


def test_the_fleets_clock_tells_how_wrong_this_one_is(config: AgentConfig, tmp_path: Path) -> None:
    async def scenario() -> Finding:
        async with Office.open(tmp_path / "fleet") as office:
            identity = tmp_path / "pi-1"
            await office.enroll(identity, token=office.token())
            told = Membership("reef", "pi-1", enrollment=str(office.address))
            (identity / MEMBERSHIP_FILE).write_bytes(told.dump())
            office.clock.ahead_s = 7200.0
            patient = Patient(replace(config, identity=identity), tmp_path)
            return (await patient.look())["clock"]

    finding = asyncio.run(scenario())
    assert finding.level is Level.FAULT
    assert "2 hours behind the fleet's" in finding.detail
    assert 7190 < finding.figures["skew_s"] < 7210


def test_a_running_agent_keeps_its_environment_to_itself(
    config: AgentConfig, tmp_path: Path
) -> None:
    config.state_dir.mkdir()
    events = Events("pi-1", bytes(16), clock=lambda: 0.0)
    with Spool(config.spool_path, max_bytes=1 << 20, run_id=bytes(16), events=events):
        found = asyncio.run(Patient(config, tmp_path).look(offline=True))
    assert found["environment"].level is Level.SKIPPED
    assert "a running agent has it" in found["environment"].detail


RELEASE = Release("0" * 64, "0.2.0-1", "0.2.0")
RUNS = State(current=Name.A, a=Slot(Content.COMMITTED, RELEASE, "it acted"))


@pytest.mark.parametrize(
    ("data", "level", "says"),
    [
        (codec.encode(RUNS), Level.OK, "0.2.0-1 runs, in slot a"),
        (codec.encode(State()), Level.WARN, "no slot was switched to yet"),
        (
            codec.encode(replace(RUNS, trial=Trial(1, "rollout 7", 0, "boot"))),
            Level.OK,
            "on trial (rollout 7)",
        ),
        (
            codec.encode(replace(RUNS, trial=Trial(1, "rollout 7", 0, "boot", deaths=2))),
            Level.WARN,
            "its agent died 2 times",
        ),
        (b"{", Level.FAULT, "damaged"),
        (b"[1]", Level.FAULT, "damaged"),
    ],
)
def test_slots_are_looked_at_where_there_are_some(
    tmp_path: Path, data: bytes, level: Level, says: str
) -> None:
    assert look_at_slots(tmp_path) is None
    (tmp_path / "slots.json").write_bytes(data)
    finding = look_at_slots(tmp_path)
    assert finding is not None
    assert finding.level is level
    assert says in finding.detail


def test_the_command_prints_a_line_each_or_one_envelope(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('fleet = "demo"\nidentity = "id"\nstate_dir = "s"\n[env]\nid = "CartPole-v1"\n')
    arguments = ["agent", "doctor", "-c", str(path), "--offline", "--prefix", str(tmp_path)]
    assert run(arguments) == 4
    captured = capsys.readouterr()
    assert captured.out.startswith("FAULT    identity")
    assert "1 faults" in captured.err
    assert run([*arguments, "-o", "json"]) == 4
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == SCHEMA
    assert envelope["items"][0]["exit_code"] == 4


def test_a_configuration_that_is_wrong_is_the_commands_own_fault(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('flet = "demo"\n')
    assert run(["agent", "doctor", "-c", str(path)]) == 4
