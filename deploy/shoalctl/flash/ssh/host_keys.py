"""Host keys: always checked, never learned without a word."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncssh

from shoal.errors import ConfigError, ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEM_KNOWN_HOSTS: Final = Path("/etc/ssh/ssh_known_hosts")
DEFAULT_PORT: Final = 22
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


class HostKeyRefused(ConnectionFailed):
    """A host showed a key that is not known for it. Nothing was sent to it."""


@dataclass(slots=True)
class KnownHosts:
    """The keys of hosts that were accepted before, and the one that may be accepted now.

    Attributes:
        path: The user's own file, which an accepted key is added to.
        accept: The fingerprint that may be accepted; None: none.
    """

    path: Path
    accept: str | None = None
    _keys: asyncssh.SSHKnownHosts = field(default_factory=asyncssh.SSHKnownHosts, repr=False)

    @classmethod
    def load(cls, path: Path, *, accept: str | None = None) -> KnownHosts:
        """Reads the user's file and the system's.

        Raises:
            ConfigError: A file can't be read, or the fingerprint is none.
        """
        if accept is not None and not _FINGERPRINT.fullmatch(accept):
            raise ConfigError(
                f"--accept-host-key {accept!r}: give what the host shows, SHA256: and 43 letters; "
                "on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
            )
        known = cls(path, accept)
        for file in (path, SYSTEM_KNOWN_HOSTS):
            if file.exists():
                try:
                    known._keys.load(file.read_text("utf-8"))
                except (OSError, ValueError) as error:
                    raise ConfigError(f"can't read the known hosts in {file}: {error}") from error
        return known

    def match(self, host: str, address: str, port: int | None) -> Sequence[Sequence[object]]:
        """What asyncssh asks for: the keys, authorities and revoked keys of a host.

        A key of port 22 does not stand for another port of the same machine.
        """
        number = None if port in {None, DEFAULT_PORT} else port
        if number is None:
            return self._keys.match(host, address, None)
        return self._keys.match(f"[{host}]:{number}", "", None)

    def check(self, host: str, port: int, key: asyncssh.SSHKey) -> HostKeyRefused | None:
        """Judges a key that is not among the known ones; accepts it if it may be.

        Returns:
            Why it is refused; None if it was accepted, and added to the user's file.
        """
        shown = key.get_fingerprint("sha256")
        kind = key.get_algorithm()
        name = host if port == DEFAULT_PORT else f"[{host}]:{port}"
        known: Iterable[asyncssh.SSHKey] = self.match(host, "", port)[0]  # type: ignore[assignment]
        before = [each.get_fingerprint("sha256") for each in known]
        if before:
            return HostKeyRefused(
                f"THE HOST KEY OF {name} HAS CHANGED: it is {shown} ({kind}) now, and was "
                f"{', '.join(before)}. Somebody may be in between. Only if you know that it was "
                f"installed anew: ssh-keygen -R '{name}' -f {self.path}, then run this again"
            )
        if self.accept != shown:
            other = f" (not {self.accept}, which you accept)" if self.accept else ""
            return HostKeyRefused(
                f"the host key of {name} is not known: it shows {shown} ({kind}){other}. Compare "
                "it on the host itself, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, then run "
                f"this again for that one host with --accept-host-key {shown}"
            )
        self._add(name, key)
        return None

    def _add(self, name: str, key: asyncssh.SSHKey) -> None:
        public = key.export_public_key("openssh").decode().split()
        line = f"{name} {public[0]} {public[1]}\n"
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    line = f"\n{line}"
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self._keys.load(line)
