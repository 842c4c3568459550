"""A machine that is flashed over SSH, and how one is written: `USER@HOST`, `HOST:PORT`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError

MAX_PORT = 65535
_TARGET = re.compile(
    r"(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]{0,31})@)?"
    r"(?:\[(?P<literal>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?)\]|(?P<address>[A-Za-z0-9][A-Za-z0-9._-]{0,252}))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    Attributes:
        name: What it is called in progress and results; unique in one command.
        address: A name, an address, or an alias of the SSH configuration.
        port: None: what the SSH configuration says, or 22.
        user: None: what the SSH configuration says, or who runs the command.
        device_id: The name it enrols with; None: its host name.
        bundles: The bundle file by architecture, if the inventory names some.
        labels: What `--limit` selects by.
    """

    name: str
    address: str
    port: int | None = None
    user: str | None = None
    device_id: str | None = None
    bundles: Mapping[str, Path] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def login(self) -> str:
        """As it would be typed: `pi@10.0.0.4:2222`."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        user = f"{self.user}@" if self.user else ""
        return f"{user}{address}" + (f":{self.port}" if self.port else "")


def parse_host(text: str) -> Host:
    """The host that was typed.

    Raises:
        ConfigError: It is not like `USER@HOST` or `USER@HOST:PORT`.
    """
    match = _TARGET.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port <= MAX_PORT):
        raise ConfigError(
            f"{text!r} is no host: use USER@HOST or USER@HOST:PORT, and brackets around an IPv6 "
            "address: pi@[fe80::1%eth0]:22"
        )
    return Host(
        name=text, address=match["literal"] or match["address"], port=port, user=match["user"]
    )
