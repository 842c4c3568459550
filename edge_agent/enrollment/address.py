"""Where a device reaches its fleet, as it was told when it was enrolled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from shoal.errors import ConfigError, IdentityError

MEMBERSHIP_FILE = "fleet.json"
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, what: str) -> Self:
        """Reads `host:port`, the host in brackets if it is an IPv6 address.

        Args:
            text: What was given.
            what: For the message: a flag, or a file.

        Raises:
            ConfigError: It is not that.
        """
        host, colon, port = text.rpartition(":")
        known = colon and host and port.isascii() and port.isdigit()
        if not known or not 0 < int(port) <= MAX_PORT:
            raise ConfigError(f"{what} {text[:200]!r}: give HOST:PORT, such as fleet.local:8444")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(frozen=True, slots=True)
class Membership:
    """What a device knows of its fleet beside its identity; `host:port` each, empty if unknown."""

    fleet: str
    device_id: str
    broker: str = ""
    parameter_server: str = ""
    enrollment: str = ""

    @classmethod
    def load(cls, identity: Path) -> Self | None:
        """Reads it from an identity directory; None if the identity was not made by enrolment.

        Raises:
            IdentityError: The file is damaged.
        """
        path = identity / MEMBERSHIP_FILE
        try:
            found = json.loads(path.read_text("utf-8"))
            return cls(**{key: str(value) for key, value in found.items()})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise IdentityError(f"{path}: damaged ({error}); remove it, or enrol anew") from error

    def dump(self) -> bytes:
        """The file's content."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"
