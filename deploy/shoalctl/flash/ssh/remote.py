"""One SSH connection to one host: runs commands as its user or as root, and writes files."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncssh

from shoal.errors import ConfigError, ConnectionFailed, DeadlineExceeded, FlashFailed
from shoalctl.flash.ssh.facts import Privilege
from shoalctl.flash.ssh.host import Host
from shoalctl.flash.ssh.host_keys import DEFAULT_PORT, HostKeyRefused, KnownHosts

CONNECT_TIMEOUT_S: Final = 20.0
LOGIN_TIMEOUT_S: Final = 120.0
"""With the time that a person needs to type a password."""
KEEPALIVE_S: Final = 10.0
KEEPALIVE_COUNT: Final = 3
"""A link that is silent for so many intervals is lost."""
MAX_OUTPUT_BYTES: Final = 1 << 20
"""Of one command; what a host says beyond is an error, not memory."""

Ask = Callable[[str], Awaitable[str]]
"""Asks a person for a secret."""


class LinkLost(ConnectionFailed):
    """The connection ended in the middle; running the same again goes on."""


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in.

    Attributes:
        known_hosts: Whose keys are trusted.
        identities: Private key files; empty: the user's own, and the SSH agent's.
        ask: Asks a person for a password; None without one.
    """

    known_hosts: KnownHosts
    identities: tuple[Path, ...] = ()
    ask: Ask | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command on a host ended.

    Attributes:
        status: Its exit status; 128 and more if a signal ended it.
        output: What it wrote to stdout.
        errors: What it wrote to stderr.
    """

    status: int
    output: bytes
    errors: bytes

    @property
    def text(self) -> str:
        """Its stdout."""
        return self.output.decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The last lines that say why it failed, as one line."""
        said = (self.errors or self.output).decode("utf-8", "replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return " ".join(lines[-3:])[-600:] or f"it ended with status {self.status}"


@dataclass(slots=True)
class Remote:
    """A host that we are logged in to.

    async with connect(host, login) as remote:
        done = await remote.run("uname -m", timeout_s=10.0)
    """

    host: Host
    connection: asyncssh.SSHClientConnection
    privilege: Privilege = Privilege.ROOT
    sudo_password: str | None = field(default=None, repr=False)

    async def run(
        self, command: str, *, stdin: bytes = b"", root: bool = False, timeout_s: float
    ) -> Completed:
        """Runs a command until it ends.

        Args:
            command: For the login shell.
            stdin: What it reads. Secrets go here, never into the command.
            root: Whether it must be root.
            timeout_s: How long it may take.

        Raises:
            LinkLost: The connection ended first; the command may go on there.
            DeadlineExceeded: It takes longer; it may go on there.
            FlashFailed: It says more than a command should.
        """
        if root:
            command, stdin = self.as_root(command), self._with_password(stdin)
        try:
            async with asyncio.timeout(timeout_s):
                process = await self.connection.create_process(command, encoding=None)
                return await _complete(process, stdin)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{self.host.name}: `{command[:80]}` did not end within {timeout_s:g} s"
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise LinkLost(f"the connection to {self.host.name} was lost: {error}") from error

    async def open(self, command: str, *, root: bool = False) -> asyncssh.SSHClientProcess[bytes]:
        """Starts a command that is talked to; the caller closes it.

        Raises:
            LinkLost: The connection is lost.
        """
        try:
            process: asyncssh.SSHClientProcess[bytes] = await self.connection.create_process(
                self.as_root(command) if root else command, encoding=None
            )
            if root and self.sudo_password is not None:
                process.stdin.write(self._with_password(b""))
        except (OSError, asyncssh.Error) as error:
            raise LinkLost(f"the connection to {self.host.name} was lost: {error}") from error
        return process

    def as_root(self, command: str) -> str:
        """The command as it is sent to be run by root."""
        return as_root(command, self.privilege, password=self.sudo_password is not None)

    def _with_password(self, stdin: bytes) -> bytes:
        if self.sudo_password is None:
            return stdin
        return self.sudo_password.encode() + b"\n" + stdin


def as_root(command: str, privilege: Privilege, *, password: bool = False) -> str:
    """A command as it is sent to be run by root.

    With a password sudo asks every time (-k), so that it never takes what the command should read.
    """
    if privilege is Privilege.ROOT:
        return command
    sudo = "sudo -k -S -p ''" if password else "sudo -n"
    return f"{sudo} sh -c {shlex.quote(command)}"


class _Client(asyncssh.SSHClient):
    """What asyncssh asks while it logs in."""

    def __init__(self, host: Host, login: Login) -> None:
        self._host = host
        self._login = login
        self.refused: HostKeyRefused | None = None
        self.asked = 0

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.refused = self._login.known_hosts.check(host or addr, port, key)
        return self.refused is None

    async def password_auth_requested(self) -> str | None:
        ask = self._login.ask
        if ask is None or self.asked >= 3:  # noqa: PLR2004 - as ssh does
            return None
        self.asked += 1
        return await ask(f"Password of {self._host.login}")

    def kbdint_auth_requested(self) -> str | None:
        return None if self._login.ask is None or self.asked >= 3 else ""  # noqa: PLR2004

    async def kbdint_challenge_received(
        self, _name: str, _instructions: str, _lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        ask = self._login.ask
        if ask is None:
            return None
        if prompts:
            self.asked += 1
        return [await ask(f"{self._host.login}: {prompt.strip(': ')}") for prompt, _ in prompts]


@asynccontextmanager
async def connect(host: Host, login: Login) -> AsyncIterator[Remote]:
    """Logs in to a host.

    Raises:
        HostKeyRefused: Its key is unknown or has changed; nothing was sent.
        ConnectionFailed: It can't be reached, or lets us not in.
    """
    client = _Client(host, login)
    connection = await _connect(host, login, client)
    try:
        yield Remote(host, connection)
    finally:
        connection.abort()


async def _connect(host: Host, login: Login, client: _Client) -> asyncssh.SSHClientConnection:
    keys = await _identities(login)
    given: dict[str, object] = {"client_keys": keys} if keys else {}
    if host.port is not None:
        given["port"] = host.port
    if host.user is not None:
        given["username"] = host.user
    try:
        return await asyncssh.connect(
            host.address,
            **given,
            client_factory=lambda: client,
            known_hosts=login.known_hosts.match,
            connect_timeout=CONNECT_TIMEOUT_S,
            login_timeout=LOGIN_TIMEOUT_S,
            keepalive_interval=KEEPALIVE_S,
            keepalive_count_max=KEEPALIVE_COUNT,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise client.refused or HostKeyRefused(
            f"the host key of {host.login} can't be verified: {error.reason}"
        ) from error
    except asyncssh.KeyExchangeFailed as error:
        raise HostKeyRefused(
            f"{host.login} and this machine agree on no key exchange: {error.reason}. If its host "
            "key is known here as one of another type, it has changed: see ssh-keygen -F"
        ) from error
    except asyncssh.PermissionDenied as error:
        hint = "" if login.ask else " (no password is asked for without a terminal)"
        raise ConnectionFailed(
            f"{host.login} lets us not in: {error.reason}; give a key with --identity, or put "
            f"yours there with ssh-copy-id{hint}"
        ) from error
    except (asyncssh.Error, OSError, TimeoutError) as error:
        what = str(error) or "no answer in time"
        port = f" at port {host.port or DEFAULT_PORT}" if not isinstance(error, OSError) else ""
        raise ConnectionFailed(f"can't reach {host.login}{port}: {what}") from error


async def _identities(login: Login) -> list[asyncssh.SSHKeyPair | asyncssh.SSHKey]:
    keys: list[asyncssh.SSHKeyPair | asyncssh.SSHKey] = []
    for path in login.identities:
        try:
            try:
                keys.append(asyncssh.read_private_key(path))
            except asyncssh.KeyEncryptionError:
                passphrase = await _passphrase(path, login)
                keys.append(asyncssh.read_private_key(path, passphrase))
            except asyncssh.KeyImportError as error:
                if "passphrase" not in str(error).lower():
                    raise
                keys.append(asyncssh.read_private_key(path, await _passphrase(path, login)))
        except OSError as error:
            raise ConfigError(f"--identity {path}: {error.strerror}") from error
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
            raise ConfigError(f"--identity {path}: {error}") from error
    return keys


async def _passphrase(path: Path, login: Login) -> str:
    if login.ask is None:
        raise ConfigError(
            f"--identity {path} has a passphrase, and there is no terminal to ask for it: use "
            "ssh-agent"
        )
    return await login.ask(f"Passphrase of {path}")


async def _complete(process: asyncssh.SSHClientProcess[bytes], stdin: bytes) -> Completed:
    try:
        process.stdin.write(stdin)
        process.stdin.write_eof()
    except OSError:
        pass  # it ended without reading all: its status says what that means
    try:
        output, errors = await asyncio.gather(_limited(process.stdout), _limited(process.stderr))
        await process.wait_closed()
    finally:
        process.close()
    status = process.returncode
    if status is None:
        raise asyncssh.ConnectionLost("it ended before the command did")
    return Completed(status if status >= 0 else 128 - status, output, errors)


async def _limited(stream: asyncssh.SSHReader[bytes]) -> bytes:
    found = bytearray()
    while piece := await stream.read(64 << 10):
        found += piece
        if len(found) > MAX_OUTPUT_BYTES:
            raise FlashFailed(f"a command said more than {MAX_OUTPUT_BYTES} bytes")
    return bytes(found)
