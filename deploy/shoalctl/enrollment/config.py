"""What the enrolment service of a fleet is told: `enrollment.toml` in the fleet's directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.topics import check_fleet

CONFIG_FILE = "enrollment.toml"
MAX_PORT = 65535
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class AddressesConfig:
    """Where devices reach the fleet, `host:port` each; empty where they are told otherwise."""

    broker: str = ""
    parameter_server: str = ""
    enrollment: str = ""


@dataclass(frozen=True, slots=True)
class EnrollmentConfig:
    """Everything `shoal enroll` needs.

        config = load_config(EnrollmentConfig, Path("fleet/enrollment.toml"))

    Attributes:
        fleet: The fleet's name.
        directory: Where ca.pem, intermediate.pem, intermediate.key and policy.pub lie, and where
            the database is kept.
        identity: The server's identity directory.
        devices_file: Devices that the embedded broker admits, one a line.
        revocation_list: The CRL, which learner and Mosquitto read.
        broker_config: broker.toml of a Mosquitto whose rules follow revocations; None if there is
            none.
        host: Address to listen on.
        port: Port to listen on; 0: any free one.
        addresses: What devices are told.
        certificate_lifetime_h: How long a device's certificate is valid; it renews at two thirds.
        renewal_grace_h: How long after its end a certificate may still be renewed, by its key: for
            devices that were switched off.
        request_lifetime_h: How long a device without a token waits for an operator.
        max_requests: How many of them wait at most; 0 to admit nobody without a token.
        requests_per_minute: How many requests one address may send in the long run.
    """

    fleet: str
    directory: Path
    identity: Path
    devices_file: Path
    revocation_list: Path
    broker_config: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8444
    addresses: AddressesConfig = field(default_factory=AddressesConfig)
    certificate_lifetime_h: float = 720.0
    renewal_grace_h: float = 2160.0
    request_lifetime_h: float = 24.0
    max_requests: int = 256
    requests_per_minute: float = 120.0

    def __post_init__(self) -> None:
        check_fleet(self.fleet)
        if not 0 <= self.port <= MAX_PORT:
            raise ConfigError(f"port = {self.port}; it must be 0 to {MAX_PORT}")
        for key in ("certificate_lifetime_h", "request_lifetime_h", "requests_per_minute"):
            value: float = getattr(self, key)
            if not value > 0:
                raise ConfigError(f"{key} = {value}; it must be over 0")
        if not self.renewal_grace_h >= 0:
            raise ConfigError(f"renewal_grace_h = {self.renewal_grace_h}; it must be 0 or more")
        if self.max_requests < 0:
            raise ConfigError(f"max_requests = {self.max_requests}; it must be 0 or more")

    @property
    def database(self) -> Path:
        """Tokens, devices, requests and events."""
        return self.directory / "enrollment.sqlite"


def load_enrollment(directory: Path) -> EnrollmentConfig:
    """The configuration in a fleet's directory.

    Raises:
        ConfigError: There is none, or it is wrong.
    """
    path = directory / CONFIG_FILE
    if not path.exists():
        raise ConfigError(
            f"{path}: no such file; give the directory that `shoal fleet init` made with --fleet"
        )
    return load_config(EnrollmentConfig, path)
