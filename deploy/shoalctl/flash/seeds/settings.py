"""What a device is told at its first boot, checked before anything is written."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError
from shoalctl.flash.seeds.wifi import Wifi

DEFAULT_USER = "shoal"
MAX_TOKEN_BYTES = 4096
_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_KEY_TYPES = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The offline bundle that a device installs itself from; its signature was checked.

    Attributes:
        path: The file.
        sha256: Its digest, in hexadecimal, which the device checks.
        arch: Which processor it is for, as `uname -m` says it.
        version: Its version.
    """

    path: Path
    sha256: str
    arch: str = "aarch64"
    version: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What one device is told.

    Attributes:
        hostname: Its name on the network; None keeps the image's.
        user: Who may log in, with the keys below and no password.
        ssh_keys: Public keys, one line each. Without any, nobody can log in over SSH.
        wifi: The wireless network it joins; it always asks for an address on eth0 too.
        bundle: What it installs.
        token: What it enrols with, once.
    """

    hostname: str | None = None
    user: str = DEFAULT_USER
    ssh_keys: tuple[str, ...] = ()
    wifi: Wifi | None = None
    bundle: Bundle | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return self == DeviceSettings(user=self.user)


def check_hostname(name: str) -> str:
    """Returns a host name if it is one.

    Raises:
        ConfigError: It is not (RFC 1123, one label, lower case).
    """
    if not _HOSTNAME.fullmatch(name):
        raise ConfigError(
            f"hostname {name!r}: use 1-63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        )
    return name


def check_user(name: str) -> str:
    """Returns a user's name if it is one.

    Raises:
        ConfigError: It is not, or it is root.
    """
    if not _USER.fullmatch(name) or name == "root":
        raise ConfigError(
            f"user {name!r}: use 1-31 of a-z, 0-9, '_' and '-', starting with a letter, not root"
        )
    return name


def check_token(token: str) -> str:
    """Returns an enrolment token without the space around it.

    Raises:
        ConfigError: It is empty, too long or no single word. The message doesn't repeat it.
    """
    token = token.strip()
    if len(token) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the enrolment token must be one word of printable ASCII characters: "
            "make one with `shoal enroll token create`"
        )
    return token


def check_ssh_keys(text: str) -> tuple[str, ...]:
    """The public keys in the text of a `.pub` or `authorized_keys` file.

    Raises:
        ConfigError: There is none, or a line is no public key. Nothing of a private key is shown.
    """
    if "PRIVATE KEY" in text:
        raise ConfigError("that is a private SSH key: give the public one, which ends in .pub")
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(_checked_key(line) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError("no SSH public key there: give a .pub file, or the key itself")
    return keys


def _checked_key(line: str) -> str:
    kind, _, rest = line.partition(" ")
    blob = rest.split(" ")[0]
    shown = f"{line[:40]}..." if len(line) > 40 else line  # noqa: PLR2004 - enough to find it
    if kind not in _KEY_TYPES:
        raise ConfigError(
            f"SSH key {shown!r}: it must start with one of {', '.join(sorted(_KEY_TYPES))}"
        )
    try:
        decoded = base64.b64decode(blob, validate=True)
    except binascii.Error:
        decoded = b""
    if _fields(decoded)[:1] != [kind.encode()] or not line.isprintable():
        raise ConfigError(f"SSH key {shown!r} is damaged: copy the whole line of the .pub file")
    return line


def _fields(blob: bytes) -> list[bytes]:
    """The fields of a key (RFC 4253, section 6.6), each behind its length; none if it is cut."""
    fields, at = [], 0
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4], "big")
        fields.append(blob[at + 4 : end])
        at = end
    return fields if at == len(blob) and len(fields) > 1 else []
