"""Real brokers for tests: each kind on a port of its own, with the keys of a fleet, killable.

    with nats_broker(tmp_path, devices=["pi-1"]) as broker, Client(broker, "pi-1") as device:
        device.publish(topic, b"...", qos=1)
        broker.kill()
        broker.start()

Signals go only to processes that were started here.
"""

import fcntl
import os
import queue
import shutil
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import paho.mqtt.client as mqtt
import pytest
from child_process import WAIT_S, Process
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from cloud_learner.uplink.subscriber import ClosingSocket
from shoal.identity import Identity
from shoalctl.broker.broker import BrokerConfig, write_mosquitto_files
from shoalctl.pki.pki import FleetPki, Role

__all__ = [
    "BROKERS",
    "FLEET",
    "HOST",
    "KINDS",
    "WAIT_S",
    "Broker",
    "Client",
    "Message",
    "Mosquitto",
    "Nats",
    "Process",
    "RefusedError",
    "broker_config",
    "free_port",
    "identity",
    "mosquitto_broker",
    "nats_broker",
]

HOST = "127.0.0.1"
FLEET = "demo"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Broker(Protocol):
    """A broker that runs, with the keys of the fleet it serves."""

    pki: FleetPki
    host: str
    port: int
    process: Process

    def start(self) -> None:
        """Starts it again, on the same port with the same files, and waits until it serves."""

    def kill(self) -> None:
        """`kill -9`, and waits until nothing of it is left."""

    def stop(self) -> None:
        """Stops it in order."""

    def admit(self, device_id: str) -> None:
        """Makes a new device's keys and has the running broker let it in."""


def identity(pki: FleetPki, name: str) -> Path:
    """The identity directory of a name, made when it is first asked for."""
    role = Role(name) if name in list(Role) else Role.DEVICE
    directory = pki.directory / "identities" / name
    return directory if directory.exists() else pki.issue(name, role)


def broker_config(directory: Path, pki: FleetPki, devices: Sequence[str]) -> BrokerConfig:
    config = BrokerConfig(
        fleet=pki.fleet,
        identity=identity(pki, "broker"),
        state_dir=directory / "broker",
        host=HOST,
        port=free_port(),
    )
    config.registry.add(*devices)
    return config


@dataclass
class Nats:
    """The embedded broker, run as an operator runs it: `shoal broker run`."""

    pki: FleetPki
    config: BrokerConfig
    process: Process = field(init=False)
    host: str = HOST

    def __post_init__(self) -> None:
        self.port = self.config.port

    def start(self) -> None:
        config = self.config
        self.process = Process(
            [
                *(sys.executable, "-m", "shoalctl.cli", "broker", "run"),
                *("--fleet", config.fleet, "--identity", str(config.identity)),
                *("--state-dir", str(config.state_dir), "--host", config.host),
                *("--port", str(config.port)),
            ]
        )
        self.process.wait_until_ready("broker_ready")

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.wait()
        # The server holds this lock as long as it lives: wait for its death.
        with (self.config.state_dir / "broker.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def stop(self) -> None:
        self.process.stop()

    def admit(self, device_id: str) -> None:
        identity(self.pki, device_id)
        seen = len(self.process.lines)
        self.config.registry.add(device_id)
        self.process.signal(signal.SIGHUP)
        self.process.wait_for_line("permissions_reloaded", start=seen)


@dataclass
class Mosquitto:
    """Mosquitto with the files that `shoal broker config mosquitto` writes."""

    pki: FleetPki
    config: BrokerConfig
    process: Process = field(init=False)
    host: str = HOST

    def __post_init__(self) -> None:
        self.port = self.config.port

    def start(self) -> None:
        assert MOSQUITTO is not None
        user = "root" if os.geteuid() == 0 else None  # else it gives the keys' owner up
        files = write_mosquitto_files(self.config, user=user)
        self.process = Process([MOSQUITTO, "-c", str(files.config)])
        self.process.wait_until_ready("running")

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.wait()

    def save(self) -> None:
        """Has it write its sessions and messages to disk, as it does every few seconds."""
        seen = len(self.process.lines)
        self.process.signal(signal.SIGUSR1)
        self.process.wait_for_line("Saving in-memory database", start=seen)
        with Client(self, "operator"):  # it does one thing at a time: once it answers, it has saved
            pass

    def stop(self) -> None:
        self.process.stop()

    def admit(self, device_id: str) -> None:
        identity(self.pki, device_id)  # any certificate of the fleet is enough


@contextmanager
def nats_broker(
    directory: Path, *, devices: Sequence[str] = (), pki: FleetPki | None = None
) -> Iterator[Nats]:
    """Runs the embedded broker."""
    pki = pki or FleetPki.create(directory / "pki", FLEET)
    broker = Nats(pki, broker_config(directory, pki, devices))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def mosquitto_broker(
    directory: Path, *, devices: Sequence[str] = (), pki: FleetPki | None = None
) -> Iterator[Mosquitto]:
    """Runs Mosquitto; skips the test where it is not installed."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    pki = pki or FleetPki.create(directory / "pki", FLEET)
    broker = Mosquitto(pki, broker_config(directory, pki, devices))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


BROKERS: dict[str, Callable[..., AbstractContextManager[Broker]]] = {
    "nats": nats_broker,
    "mosquitto": mosquitto_broker,
}
"""Every supported broker, by name."""
KINDS = ("nats", pytest.param("mosquitto", marks=pytest.mark.mosquitto))
"""Their names, for `pytest.mark.parametrize`."""


def free_port() -> int:
    with socket.create_server((HOST, 0)) as holder:
        port: int = holder.getsockname()[1]
    return port


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    retained: bool
    qos: int


class RefusedError(Exception):
    """The broker did not let the client in."""


class Client:
    """An MQTT client with a name of the fleet, made for asking exactly one thing at a time.

    with Client(broker, "pi-1") as device:
        device.publish(topic, b"...", qos=1)     # returns once the broker acknowledged it
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        client_id: str = "",
        clean: bool = True,
        context: ssl.SSLContext | None = None,
        will: Message | None = None,
        hears_broker: bool = False,
    ) -> None:
        self._broker = broker
        self._hears_broker = hears_broker  # which tells the fleet whom it refused
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"{name}-{os.urandom(4).hex()}",
            clean_session=clean,
            protocol=mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        if context is None:
            context = Identity.load(identity(broker.pki, name)).ssl_context()
        context.sslsocket_class = ClosingSocket
        self._client.tls_set_context(context)
        if will is not None:
            self._client.will_set(will.topic, will.payload, will.qos, will.retained)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._connected: queue.Queue[bool] = queue.Queue()
        self._granted: queue.Queue[list[bool]] = queue.Queue()
        self._messages: queue.Queue[Message] = queue.Queue()
        self.session_present = False
        self.lost = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._client.connect(self._broker.host, self._broker.port, keepalive=30)
            self._client.loop_start()
            admitted = self._connected.get(timeout=WAIT_S)
        except (OSError, ssl.SSLError) as error:
            self._close()
            raise RefusedError(str(error)) from error
        except queue.Empty:
            self._close()
            raise
        if not admitted:
            self._close()
            raise RefusedError("the broker closed the connection")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._close()

    def _close(self) -> None:
        self._client.loop_stop()
        self._client._reset_sockets()  # else they stay open until some collection of garbage

    @property
    def local_port(self) -> int:
        """Of the connection: another number is another connection."""
        sock = self._client.socket()
        assert isinstance(sock, socket.socket), "not connected"
        port: int = sock.getsockname()[1]
        return port

    def subscribe(self, topic_filter: str, qos: int = 0) -> bool:
        """Returns whether the broker granted it."""
        self._client.subscribe(topic_filter, qos)
        return all(self._granted.get(timeout=WAIT_S))

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Returns once the broker acknowledged it, or at QoS 0 once it was sent."""
        sending = self._client.publish(topic, payload, qos, retain)
        sending.wait_for_publish(WAIT_S)
        assert sending.is_published(), f"{topic} was not acknowledged"

    def send(self, topic: str, payload: bytes) -> None:
        """Hands it to the client and does not wait for the broker."""
        self._client.publish(topic, payload, 1)

    def receive(self) -> Message:
        """The next message; fails if none comes."""
        return self._messages.get(timeout=WAIT_S)

    def vanish(self) -> None:
        """Cuts the connection without a word, as a lost device does."""
        sock = self._client.socket()
        assert isinstance(sock, socket.socket), "not connected"
        sock.shutdown(socket.SHUT_RDWR)
        assert self.lost.wait(WAIT_S)

    def _on_connect(
        self,
        _client: mqtt.Client,
        _data: object,
        flags: mqtt.ConnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self.session_present = flags.session_present
        self._connected.put(not code.is_failure)

    def _on_disconnect(self, *_: object) -> None:
        self.lost.set()
        self._connected.put(item=False)

    def _on_subscribe(
        self,
        _client: mqtt.Client,
        _data: object,
        _mid: int,
        codes: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        self._granted.put([not code.is_failure for code in codes])

    def _on_message(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        if message.topic.endswith("/broker/up/event") and not self._hears_broker:
            return
        self._messages.put(
            Message(message.topic, bytes(message.payload), message.retain, message.qos)
        )
