"""The fleet views on a real gRPC server with mutual TLS: what is printed, and the exit code."""

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import yaml

from shoal.v1 import device_pb2, fleet_pb2, fleet_pb2_grpc
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki, Role

FLEET = "demo"


class FakeFleet(fleet_pb2_grpc.FleetServicer):
    """A fleet of two devices, whose audit can be made to fail and whose answers can be held."""

    def __init__(self) -> None:
        self.balanced = True
        self.held: threading.Event | None = None
        self.asked: list[str] = []
        self.policies: list[fleet_pb2.PolicyInfo] = []
        self.produced = 8
        self.reasons: list[str] = []
        self.gradients: dict[str, int] = {}

    def ListDevices(  # noqa: N802 - the name in the proto
        self, request: fleet_pb2.ListDevicesRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.ListDevicesResponse:
        self.asked.append(request.fleet)
        if self.held is not None:
            self.held.wait(20)
        devices = [_device("pi-1"), _device("pi-2")]
        devices[1].reasons.extend(self.reasons)
        devices[1].gradients.update(self.gradients)
        return fleet_pb2.ListDevicesResponse(devices=devices)

    def DescribeDevice(  # noqa: N802 - the name in the proto
        self, request: fleet_pb2.DescribeDeviceRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.DescribeDeviceResponse:
        if request.device_id != "pi-1":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no device {request.device_id!r}")
        event = device_pb2.Event(name="born", severity=device_pb2.SEVERITY_INFO, message="hello")
        return fleet_pb2.DescribeDeviceResponse(
            device=_device("pi-1"), events=[fleet_pb2.RecordedEvent(event=event, age_s=1.0)]
        )

    def ListPolicies(  # noqa: N802 - the name in the proto
        self, request: fleet_pb2.ListPoliciesRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.ListPoliciesResponse:
        if not self.policies:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "only an operator's certificate may ask"
            )
        return fleet_pb2.ListPoliciesResponse(policies=self.policies)

    def Audit(  # noqa: N802 - the name in the proto
        self, request: fleet_pb2.AuditRequest, context: grpc.ServicerContext
    ) -> fleet_pb2.AuditResponse:
        audit = fleet_pb2.Audit(
            produced=self.produced, trained=self.produced, balanced=self.balanced
        )
        entry = fleet_pb2.DeviceAudit(device_id="pi-1", audit=audit, telemetry_age_s=1.0)
        return fleet_pb2.AuditResponse(total=audit, devices=[entry])


def _device(device_id: str) -> fleet_pb2.Device:
    return fleet_pb2.Device(
        device_id=device_id,
        health=fleet_pb2.HEALTH_ONLINE,
        telemetry_age_s=1.5,
        status_age_s=60.0,
        chunk_age_s=-1.0,
        telemetry=device_pb2.Telemetry(active_version=3, env_steps=256),
    )


@dataclass
class Served:
    """A server of the fleet, and how an operator reaches it."""

    pki: FleetPki
    port: int
    fleet: FakeFleet
    operator: Path
    options: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.options = ["--server", f"localhost:{self.port}", "--identity", str(self.operator)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    learner = pki.issue("learner", Role.LEARNER)
    ca, cert, key = ((learner / f"{name}.pem").read_bytes() for name in ("ca", "cert", "key"))
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    fleet = FakeFleet()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield Served(pki, port, fleet, pki.issue("operator", Role.OPERATOR))
        server.stop(None).wait()


def test_devices_are_listed(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "ls", *served.options]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "NAME"
    assert [row.split()[0] for row in rows] == ["pi-1", "pi-2"]


def test_a_table_of_devices_says_below_it_why_one_is_degraded(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.reasons = ["no space left on its disk", "its clock is wrong"]
    assert run(["devices", "ls", *served.options]) == 0
    captured = capsys.readouterr()
    assert "disk" not in captured.out
    assert captured.err == "pi-2: no space left on its disk (and 1 more)\n"
    assert run(["devices", "ls", "-o", "wide", *served.options]) == 0
    captured = capsys.readouterr()
    assert "its clock is wrong" in captured.out
    assert captured.err == ""


def test_the_audit_of_a_fleet_of_gradients_says_why_there_is_nothing(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.produced, served.fleet.gradients = 0, {"applied": 4}
    assert run(["fleet", "audit", *served.options]) == 0
    assert "keeps no trajectories" in capsys.readouterr().err


def test_the_fleet_is_the_one_whose_ca_made_the_identity(served: Served) -> None:
    run(["devices", "ls", *served.options])
    assert served.fleet.asked == [FLEET]


@pytest.mark.parametrize("how", ["json", "yaml"])
def test_a_program_gets_exactly_one_envelope(
    served: Served, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "ls", "-o", how, *served.options]) == 0
    captured = capsys.readouterr()
    envelope = json.loads(captured.out) if how == "json" else yaml.safe_load(captured.out)
    assert envelope["schema"] == "shoal.v1.DeviceList"
    assert [item["device_id"] for item in envelope["items"]] == ["pi-1", "pi-2"]
    assert envelope["items"][0]["telemetry_age_s"] == 1.5
    assert envelope["items"][0]["chunk_age_s"] is None
    assert captured.err == ""


def test_a_device_is_described_with_its_events(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "describe", "pi-1", *served.options]) == 0
    out = capsys.readouterr().out
    assert "Health         online" in out
    assert "born" in out
    assert run(["devices", "describe", "pi-1", "-o", "json", *served.options]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.Device"
    assert envelope["items"][0]["events"][0]["name"] == "born"


def test_an_unknown_device_exits_with_1(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "describe", "pi-7", *served.options]) == 1
    captured = capsys.readouterr()
    assert captured.err == "shoal: no device 'pi-7'\n"
    assert captured.out == ""


def test_an_audit_that_adds_up_exits_with_0(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "audit", *served.options]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "TOTAL"


def test_an_audit_that_does_not_add_up_is_shown_and_exits_with_1(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.balanced = False
    assert run(["fleet", "audit", "-o", "json", *served.options]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["total"]["balanced"] is False
    assert "do not add up: pi-1" in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_refusal_exits_with_2(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "ls", *served.options]) == 2
    assert "refused us: only an operator's certificate may ask" in capsys.readouterr().err


def test_a_table_has_the_newest_policies_and_says_how_many_there_are_beside(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    newest_first = range(120, 0, -1)
    served.fleet.policies = [fleet_pb2.PolicyInfo(version=each) for each in newest_first]
    assert run(["policy", "ls", *served.options]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [
        f"v{each}" for each in newest_first[:50]
    ]
    assert "70 older versions are kept" in said.err
    for more in (["--limit", "0"], ["-o", "json"]):
        assert run(["policy", "ls", *more, *served.options]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        assert "120" in said.out
        assert said.out.count("\n") >= 121 or len(json.loads(said.out)["items"]) == 120


def test_a_policy_is_shown_by_its_version(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.policies = [
        fleet_pb2.PolicyInfo(version=7, active_devices=["pi-2"]),
        fleet_pb2.PolicyInfo(version=6),
    ]
    for name in ("7", "v7", "latest"):
        assert run(["policy", "show", name, *served.options]) == 0
        assert "Devices        pi-2" in capsys.readouterr().out
    assert run(["policy", "show", "7", "-o", "json", *served.options]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.Policy"
    assert envelope["items"][0]["active_devices"] == ["pi-2"]


@pytest.mark.parametrize(
    ("version", "code", "part"), [("8", 1, "the nearest is v7"), ("seven", 4, "no policy version")]
)
def test_a_policy_that_is_not_there_is_one_line(
    served: Served, version: str, code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.policies = [fleet_pb2.PolicyInfo(version=7)]
    assert run(["policy", "show", version, *served.options]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert part in captured.err


def test_a_server_that_does_not_answer_in_time_exits_with_3(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fleet.held = threading.Event()
    try:
        assert run(["devices", "ls", "--timeout-s", "0.5", *served.options]) == 3
    finally:
        served.fleet.held.set()
    assert "did not answer within 0.5 s" in capsys.readouterr().err


def test_a_server_that_is_not_there_exits_with_2_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    assert run(["devices", "ls", "-s", f"localhost:{port}", "-i", str(served.operator)]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"cannot reach the learner at localhost:{port}" in lines[0]


def says_what_else_answers(said: str, port: int) -> bool:
    where = f"what answers at localhost:{port} is not the learner's parameter server"
    return where in said and "`parameter_server`" in said and len(said.splitlines()) == 1


def test_a_server_of_other_services_exits_with_2_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollout", "ls", *served.options]) == 2
    assert says_what_else_answers(capfd.readouterr().err, served.port)


def test_a_tls_server_of_another_protocol_exits_with_2_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = served.pki.issue("broker", Role.BROKER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(broker / "cert.pem", broker / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with context.wrap_socket(connection, server_side=True) as secure:
                        secure.recv(1)
            except OSError:  # the client gave up, or the test is over
                return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        operator = str(served.operator)
        assert run(["devices", "ls", "-s", f"localhost:{port}", "-i", operator]) == 2
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert says_what_else_answers(capfd.readouterr().err, port)


def shoal(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: what gRPC itself writes is seen, too."""
    return subprocess.run(
        [sys.executable, "-m", "shoalctl.cli", *arguments],
        capture_output=True,
        check=False,
        text=True,
    )


def test_an_identity_of_another_fleet_exits_with_2_in_one_line(
    served: Served, tmp_path: Path
) -> None:
    foreign = FleetPki.create(tmp_path / "foreign", "reef").issue("operator", Role.OPERATOR)
    finished = shoal("devices", "ls", "-s", f"localhost:{served.port}", "-i", str(foreign))
    assert finished.returncode == 2
    assert len(finished.stderr.splitlines()) == 1
    assert "is not of the fleet of --identity (reef)" in finished.stderr


def test_a_certificate_that_the_server_does_not_know_exits_with_2_in_one_line(
    served: Served, tmp_path: Path
) -> None:
    posing = FleetPki.create(tmp_path / "foreign", FLEET).issue("operator", Role.OPERATOR)
    (posing / "ca.pem").write_bytes((served.pki.directory / "ca.pem").read_bytes())
    finished = shoal("devices", "ls", "-s", f"localhost:{served.port}", "-i", str(posing))
    assert finished.returncode == 2
    assert len(finished.stderr.splitlines()) == 1
    assert f"cannot reach the learner at localhost:{served.port}" in finished.stderr


def test_a_missing_identity_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "ls", "-i", str(tmp_path / "nowhere")]) == 4
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "server", ["", "localhost", "localhost:0", "localhost:99999", "http://a:1"]
)
def test_an_address_that_is_none_exits_with_4(
    served: Served, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "ls", "-s", server, "-i", str(served.operator)]) == 4
    assert "give host:port" in capsys.readouterr().err


def test_server_and_identity_may_come_from_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_OPERATOR_SERVER", f"localhost:{served.port}")
    monkeypatch.setenv("SHOAL_OPERATOR_IDENTITY", str(served.operator))
    assert run(["devices", "ls"]) == 0
    assert "pi-2" in capsys.readouterr().out
