"""Where something listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from shoal.errors import ConfigError

MAX_PORT: Final = 65_535
_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port.

    >>> str(Endpoint.parse("[::1]:8883", what="--broker"))
    '[::1]:8883'
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, what: str, example: str = "localhost:8883") -> Self:
        """Reads `host:port`, the host in brackets if it is an IPv6 address.

        Args:
            text: What was given.
            what: For the message: a flag, or a file.
            example: For the message: a good one.

        Raises:
            ConfigError: It is not that.
        """
        host, colon, port = text.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit()):
            raise ConfigError(f"{what} {text[:200]!r}: give HOST:PORT, such as {example}")
        if len(port) > _DIGITS or not 0 < int(port) <= MAX_PORT:
            raise ConfigError(f"{what} {text[:200]!r}: a port is 1 to {MAX_PORT}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))
