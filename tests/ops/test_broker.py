"""Both supported brokers, for real: who gets in, what each may say, and what outlives a kill -9."""

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from brokers import (
    BROKERS,
    FLEET,
    KINDS,
    WAIT_S,
    Broker,
    Client,
    Message,
    Mosquitto,
    RefusedError,
    identity,
    nats_broker,
)

from shoal.topics import Topics
from shoalctl.pki.pki import FleetPki, Role

TOPICS = Topics(FLEET)
DEVICES = ("pi-1", "pi-2")


@pytest.fixture(params=KINDS, scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker of each kind, shared by the tests that leave it as it is."""
    directory = tmp_path_factory.mktemp(request.param)
    with BROKERS[request.param](directory, devices=DEVICES) as running:
        yield running


def bare_context(broker: Broker) -> ssl.SSLContext:
    """Trusts the fleet's CA and has no certificate to show."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(broker.pki.directory / "ca.pem")
    return context


def test_a_chunk_travels_from_a_device_to_the_learner(broker: Broker) -> None:
    with Client(broker, "learner") as learner, Client(broker, "pi-1") as device:
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        device.publish(TOPICS.trajectory("pi-1"), b"chunk")
        assert learner.receive() == Message(
            TOPICS.trajectory("pi-1"), b"chunk", retained=False, qos=1
        )


def test_an_acknowledgement_travels_from_the_learner_to_the_device_alone(broker: Broker) -> None:
    with ExitStack() as clients:
        learner, first, second = (
            clients.enter_context(Client(broker, name)) for name in ("learner", *DEVICES)
        )
        assert first.subscribe(TOPICS.down("pi-1"))
        assert second.subscribe(TOPICS.down("pi-2"))
        learner.publish(TOPICS.ack("pi-1"), b"to the first")
        learner.publish(TOPICS.ack("pi-2"), b"to the second")
        assert first.receive().payload == b"to the first"
        assert second.receive().payload == b"to the second"


def test_a_client_without_a_certificate_is_refused(broker: Broker) -> None:
    with pytest.raises(RefusedError), Client(broker, "pi-1", context=bare_context(broker)):
        pass


def test_a_certificate_of_another_ca_is_refused(broker: Broker, tmp_path: Path) -> None:
    foreign = FleetPki.create(tmp_path / "foreign", FLEET).issue("pi-1", Role.DEVICE)
    context = bare_context(broker)
    context.load_cert_chain(foreign / "cert.pem", foreign / "key.pem")
    with pytest.raises(RefusedError), Client(broker, "pi-1", context=context):
        pass


@pytest.mark.parametrize(
    "topic",
    [
        TOPICS.trajectory("pi-2"),
        TOPICS.status("pi-2"),
        TOPICS.ack("pi-1"),
        TOPICS.trajectory("pi-1") + "/more",
        TOPICS.trajectory("pi-1").replace(f"/{FLEET}/", "/other/"),
    ],
)
def test_what_a_device_says_under_a_topic_not_its_own_reaches_nobody(
    broker: Broker, topic: str
) -> None:
    with Client(broker, "learner") as learner:
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        with Client(broker, "pi-2") as victim:
            assert victim.subscribe(TOPICS.down("pi-2"))
            assert victim.subscribe(TOPICS.down("pi-2").replace("/+", "/#"))
            with Client(broker, "pi-1") as device:
                device.publish(topic, b"spoofed", qos=0)
                device.publish(topic, b"spoofed", qos=1)
            with Client(broker, "pi-1") as device:
                device.publish(TOPICS.event("pi-1"), b"own")
            assert learner.receive().payload == b"own"
            learner.publish(TOPICS.ack("pi-2"), b"from the learner")
            assert victim.receive().payload == b"from the learner"


@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "shoal/#",
        TOPICS.all_up(),
        TOPICS.down("pi-2"),
        TOPICS.base("pi-2") + "/#",
        "$MQTT/#",
        "$JS/#",
        "$SYS/#",
    ],
)
def test_a_device_hears_nothing_that_is_not_for_it(broker: Broker, topic_filter: str) -> None:
    with (
        Client(broker, "pi-1") as spy,
        Client(broker, "pi-2") as device,
        Client(broker, "learner") as learner,
    ):
        spy.subscribe(topic_filter)
        assert spy.subscribe(TOPICS.down("pi-1"))
        assert learner.subscribe(TOPICS.all_up())
        device.publish(TOPICS.trajectory("pi-2"), b"private")
        assert learner.receive().payload == b"private"
        learner.publish(TOPICS.ack("pi-2"), b"private too")
        learner.publish(TOPICS.ack("pi-1"), b"for the spy")
        assert spy.receive().payload == b"for the spy"


def test_a_last_will_fires_when_a_device_vanishes(broker: Broker) -> None:
    will = Message(TOPICS.status("pi-1"), b"lost", retained=True, qos=1)
    with Client(broker, "learner") as learner:
        assert learner.subscribe(TOPICS.status("pi-1"), qos=1)
        with Client(broker, "pi-1", will=will) as device:
            device.publish(TOPICS.status("pi-1"), b"born", retain=True)
            while learner.receive().payload != b"born":
                continue  # what an earlier test left retained
            device.vanish()
        assert learner.receive().payload == b"lost"


def test_no_last_will_fires_when_a_device_says_goodbye(broker: Broker) -> None:
    will = Message(TOPICS.event("pi-1"), b"lost", retained=False, qos=1)
    with Client(broker, "learner") as learner:
        assert learner.subscribe(TOPICS.event("pi-1"), qos=1)
        with Client(broker, "pi-1", will=will):
            pass
        with Client(broker, "pi-1") as device:
            device.publish(TOPICS.event("pi-1"), b"next")
        assert learner.receive().payload == b"next"


def test_a_device_cannot_leave_a_will_under_another_devices_topic(broker: Broker) -> None:
    will = Message(TOPICS.event("pi-2"), b"spoofed", retained=False, qos=1)
    with Client(broker, "learner") as learner:
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        with suppress(RefusedError), Client(broker, "pi-1", will=will) as device:
            device.vanish()
        with Client(broker, "pi-2") as victim:
            victim.publish(TOPICS.event("pi-2"), b"own")
        while (heard := learner.receive()).retained:
            continue  # what an earlier test left
        assert heard.payload == b"own"


def test_a_status_is_retained_for_a_learner_that_comes_later(broker: Broker) -> None:
    with Client(broker, "pi-2") as device:
        device.publish(TOPICS.status("pi-2"), b"born", retain=True)
    with Client(broker, "learner") as learner:
        assert learner.subscribe(TOPICS.status("pi-2"), qos=1)
        assert learner.receive() == Message(TOPICS.status("pi-2"), b"born", retained=True, qos=1)


def test_the_largest_message_a_fleet_sends_arrives(broker: Broker) -> None:
    chunk = bytes(1024 * 1024)
    with Client(broker, "learner") as learner, Client(broker, "pi-1") as device:
        assert learner.subscribe(TOPICS.trajectory("pi-1"), qos=1)
        device.publish(TOPICS.trajectory("pi-1"), chunk)
        assert learner.receive().payload == chunk


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_device_is_admitted_while_the_others_stay_connected(
    kind: str, tmp_path: Path
) -> None:
    with (
        BROKERS[kind](tmp_path, devices=["pi-1"]) as broker,
        Client(broker, "learner") as learner,
        Client(broker, "pi-1") as device,
    ):
        assert learner.subscribe(TOPICS.all_up(), qos=1)
        connections = (learner.local_port, device.local_port)
        broker.admit("pi-9")
        with Client(broker, "pi-9") as newcomer:
            newcomer.publish(TOPICS.trajectory("pi-9"), b"new")
            assert learner.receive().payload == b"new"
        device.publish(TOPICS.trajectory("pi-1"), b"still here")
        assert learner.receive().payload == b"still here"
        assert (learner.local_port, device.local_port) == connections
        assert not learner.lost.is_set()
        assert not device.lost.is_set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_absent_learner_was_sent_survives_a_kill_of_the_broker(
    kind: str, tmp_path: Path
) -> None:
    count = 300
    with BROKERS[kind](tmp_path, devices=["pi-1"]) as broker:
        with Client(broker, "learner", client_id="learner", clean=False) as learner:
            assert not learner.session_present
            assert learner.subscribe(TOPICS.all_up(), qos=1)
        with Client(broker, "pi-1") as device:
            for number in range(count):
                device.publish(TOPICS.trajectory("pi-1"), str(number).encode())
        if isinstance(broker, Mosquitto):
            broker.save()
        broker.kill()
        broker.start()
        with Client(broker, "learner", client_id="learner", clean=False) as learner:
            assert learner.session_present
            heard = {int(learner.receive().payload) for _ in range(count)}
        assert heard == set(range(count))


def test_a_device_that_is_not_on_the_list_is_refused_by_nats(tmp_path: Path) -> None:
    with nats_broker(tmp_path, devices=["pi-1"]) as broker:
        with pytest.raises(RefusedError), Client(broker, "pi-2"):
            pass
        with Client(broker, "pi-1") as device:
            device.publish(TOPICS.event("pi-1"), b"in")


def test_a_device_taken_off_the_list_is_cut_off_by_nats(tmp_path: Path) -> None:
    with (
        nats_broker(tmp_path, devices=DEVICES) as broker,
        Client(broker, "pi-1") as staying,
        Client(broker, "pi-2") as leaving,
    ):
        broker.config.registry.remove("pi-2")
        assert leaving.lost.wait(WAIT_S)
        with pytest.raises(RefusedError), Client(broker, "pi-2"):
            pass
        staying.publish(TOPICS.event("pi-1"), b"still here")
        assert not staying.lost.is_set()


def test_nats_keeps_its_permissions_when_the_list_is_malformed(tmp_path: Path) -> None:
    with nats_broker(tmp_path, devices=["pi-1"]) as broker:
        broker.config.registry.path.write_text("pi-1\nNot A Device\n")
        broker.process.signal(signal.SIGHUP)
        line = broker.process.wait_for_line("permissions_kept")
        assert "line 2" in line
        with Client(broker, "pi-1") as device:
            device.publish(TOPICS.event("pi-1"), b"still in")


def test_nats_tells_a_device_which_filters_are_not_granted(tmp_path: Path) -> None:
    filters = ["#", "shoal/#", "$MQTT/#", "$JS/#", "$SYS/#", TOPICS.all_up(), TOPICS.down("pi-2")]
    with nats_broker(tmp_path, devices=DEVICES) as broker, Client(broker, "pi-1") as device:
        assert [each for each in filters if device.subscribe(each)] == []
        assert device.subscribe(TOPICS.down("pi-1"))


def test_a_message_over_the_limit_is_refused_by_nats_and_said_so(
    tmp_path: Path,
) -> None:
    with nats_broker(tmp_path, devices=DEVICES) as broker, Client(broker, "pi-2") as other:
        with Client(broker, "pi-1") as device:
            device.send(TOPICS.trajectory("pi-1"), bytes(3 * 1024 * 1024))
            assert device.lost.wait(WAIT_S)
        line = broker.process.wait_for_line("maximum payload exceeded")
        assert "pi-1" in line
        other.publish(TOPICS.event("pi-2"), b"still here")


def test_the_native_port_of_nats_is_on_loopback_and_asks_for_a_certificate(
    tmp_path: Path,
) -> None:
    with nats_broker(tmp_path, devices=["pi-1"]) as broker:
        server = psutil.Process(broker.process.pid).children(recursive=True)
        listening = {
            connection.laddr
            for process in server
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
    assert {address.ip for address in listening} == {"127.0.0.1"}
    text = (broker.config.state_dir / "nats.conf").read_text()
    assert text.count("verify_and_map: true") == len(listening) == 2


def test_killing_the_command_leaves_no_server_behind(tmp_path: Path) -> None:
    with nats_broker(tmp_path) as broker:
        servers = psutil.Process(broker.process.pid).children(recursive=True)
        assert [server.name() for server in servers] == ["nats-server"]
        broker.kill()
        assert psutil.wait_procs(servers, WAIT_S)[1] == []
        broker.start()


def test_stopping_the_command_stops_the_server_and_exits_with_0(tmp_path: Path) -> None:
    with nats_broker(tmp_path) as broker:
        servers = psutil.Process(broker.process.pid).children(recursive=True)
        assert broker.process.stop() == 0
        assert not any(server.is_running() for server in servers)


def test_the_command_ends_when_its_server_dies(tmp_path: Path) -> None:
    with nats_broker(tmp_path) as broker:
        (server,) = psutil.Process(broker.process.pid).children(recursive=True)
        server.kill()
        assert broker.process.wait() == 1
        assert "nats-server ended" in broker.process.lines[-1]


def broker_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoalctl.cli", "broker", "run", "--log-level=error", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def complaint(finished: subprocess.CompletedProcess[str]) -> str:
    """The last line of stderr; no other line is for people."""
    lines = finished.stderr.splitlines()
    assert all(line.startswith("{") for line in lines[:-1])
    assert finished.stdout == ""
    return lines[-1]


def test_a_used_port_is_one_clear_line(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        finished = broker_run(
            *("--fleet", FLEET, "--identity", str(identity(pki, "broker"))),
            *("--state-dir", str(tmp_path / "broker"), "--port", str(port)),
        )
    assert finished.returncode == 2
    assert complaint(finished) == (
        f"shoal: cannot listen on 127.0.0.1:{port}: the port is in use; "
        "stop what holds it, or choose another with --port"
    )


def test_a_second_broker_in_one_directory_is_one_clear_line(tmp_path: Path) -> None:
    with nats_broker(tmp_path) as broker:
        finished = broker_run(
            *("--fleet", FLEET, "--identity", str(broker.config.identity)),
            *("--state-dir", str(broker.config.state_dir), "--port", "0"),
        )
    assert finished.returncode == 4
    assert "another broker uses" in complaint(finished)


def test_a_missing_identity_is_one_clear_line(tmp_path: Path) -> None:
    finished = broker_run(
        *("--fleet", FLEET, "--identity", str(tmp_path / "nowhere")),
        *("--state-dir", str(tmp_path / "broker")),
    )
    assert finished.returncode == 4
    assert "nowhere" in complaint(finished)


@pytest.mark.parametrize(
    ("toml", "part"),
    [
        ('prot = 1\nfleet = "demo"\nidentity = "i"\nstate_dir = "s"', "did you mean port?"),
        ('port = 99999\nfleet = "demo"\nidentity = "i"\nstate_dir = "s"', "0 to 65535"),
        ('fleet = "De Mo"\nidentity = "i"\nstate_dir = "s"', "fleet name"),
        ('devices = ["learner"]\nfleet = "demo"\nidentity = "i"\nstate_dir = "s"', "reserved"),
        ('max_payload_bytes = 7\nfleet = "demo"\nidentity = "i"\nstate_dir = "s"', "131072 to"),
        ("fleet = ", "broker.toml"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(tmp_path: Path, toml: str, part: str) -> None:
    (tmp_path / "broker.toml").write_text(toml)
    finished = broker_run("--config", str(tmp_path / "broker.toml"))
    assert finished.returncode == 4
    assert part in complaint(finished)
