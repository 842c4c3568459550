"""MQTT topics: `shoal/v1/{fleet}/{partition}/{device}/{up|down}/{kind}`.

The partition is a stable hash of the device, so that learner ranks can split ingest and yet keep
the order of each device, on any broker.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import ConfigError, WireError

PARTITIONS = 16
RESERVED_NAMES = frozenset({"learner", "operator", "broker", "server"})
UP_KINDS = frozenset({"trajectory", "status", "telemetry", "event", "log", "reply"})
DOWN_KINDS = frozenset({"ack", "command", "appetite"})
_LEVELS = 7
_KNOWN_TOPICS = 4096
"""That are remembered, taken apart: a fleet uses the same ones again and again."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_fleet(name: str) -> str:
    """Returns the name of a fleet if it is one.

    Raises:
        ConfigError: It is not 1-63 characters of a-z, 0-9 and '-'.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"fleet name {name!r}: use 1-63 of a-z, 0-9 and '-', starting with a letter or digit"
        )
    return name


def check_device_id(name: str) -> str:
    """Returns the id of a device if it is one.

    Raises:
        ConfigError: It is not 1-63 characters of a-z, 0-9 and '-', or it is reserved.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"device id {name!r}: use 1-63 of a-z, 0-9 and '-', starting with a letter or digit"
        )
    if name in RESERVED_NAMES:
        raise ConfigError(f"device id {name!r} is reserved; choose another name")
    return name


@lru_cache(_KNOWN_TOPICS)
def partition_of(device_id: str) -> str:
    """The partition of a device, two decimal digits, the same for ever."""
    digest = hashlib.sha256(device_id.encode()).digest()
    return f"{digest[0] % PARTITIONS:02d}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic."""

    fleet: str
    partition: str
    device_id: str
    direction: str
    kind: str


@dataclass(frozen=True, slots=True)
class Topics:
    """Builds the topics of one fleet.

    Topics("farm").trajectory("pi-1") == "shoal/v1/farm/10/pi-1/up/trajectory"
    """

    fleet: str

    def __post_init__(self) -> None:
        check_fleet(self.fleet)

    def _of(self, device_id: str, direction: str, kind: str) -> str:
        return f"{self.base(device_id)}/{direction}/{kind}"

    def base(self, device_id: str) -> str:
        """Everything of one device lies under this prefix."""
        return f"shoal/v1/{self.fleet}/{partition_of(device_id)}/{device_id}"

    def trajectory(self, device_id: str) -> str:
        """Chunks, QoS 1."""
        return self._of(device_id, "up", "trajectory")

    def status(self, device_id: str) -> str:
        """Birth and death certificates, retained, QoS 1."""
        return self._of(device_id, "up", "status")

    def telemetry(self, device_id: str) -> str:
        """Periodic counters, QoS 0."""
        return self._of(device_id, "up", "telemetry")

    def event(self, device_id: str) -> str:
        """What happened, QoS 1."""
        return self._of(device_id, "up", "event")

    def ack(self, device_id: str) -> str:
        """The learner's acknowledgements, QoS 0."""
        return self._of(device_id, "down", "ack")

    def appetite(self, device_id: str) -> str:
        """What the learner can use, QoS 0."""
        return self._of(device_id, "down", "appetite")

    def down(self, device_id: str) -> str:
        """The filter a device subscribes to."""
        return f"{self.base(device_id)}/down/+"

    def all_up(self) -> str:
        """The filter a learner subscribes to."""
        return f"shoal/v1/{self.fleet}/+/+/up/+"


@lru_cache(_KNOWN_TOPICS)
def parse_topic(topic: str) -> Topic:
    """Takes a topic apart.

    Raises:
        WireError: It is not one of ours, or its partition is not the device's.
    """
    parts = topic.split("/")
    if len(parts) != _LEVELS or parts[0] != "shoal":
        raise WireError(f"topic {topic[:200]!r} is not shoal/v1/fleet/partition/device/way/kind")
    _, version, fleet, partition, device_id, direction, kind = parts
    if version != "v1":
        raise WireError(f"topic {topic[:200]!r}: version {version!r}, this program speaks v1")
    if not _NAME.fullmatch(fleet) or not _NAME.fullmatch(device_id):
        raise WireError(f"topic {topic[:200]!r}: the fleet or the device is not a valid name")
    if partition != partition_of(device_id):
        raise WireError(f"topic {topic[:200]!r}: the partition is not that of {device_id!r}")
    kinds = {"up": UP_KINDS, "down": DOWN_KINDS}.get(direction, frozenset())
    if kind not in kinds:
        raise WireError(f"topic {topic[:200]!r}: unknown kind {direction}/{kind}")
    return Topic(fleet, partition, device_id, direction, kind)
