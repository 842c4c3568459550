"""Commands on an emulated device, over SSH as an operator would."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SshKey:
    """A key pair made for a test.

    Attributes:
        private: The file of the private key; the public one lies beside it.
    """

    private: Path

    @classmethod
    def make(cls, directory: Path) -> SshKey:
        """Makes one without a passphrase."""
        private = directory / "id_ed25519"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(private)]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        return cls(private)

    @property
    def public(self) -> Path:
        """The file of the public key."""
        return self.private.with_suffix(".pub")


@dataclass(frozen=True, slots=True)
class Shell:
    """Where to log in, and with what.

    Attributes:
        user: Who.
        port: On the loopback address.
        key: What with.
        known_hosts: A file; what is seen first is believed, and nothing else after that.
    """

    user: str
    port: int
    key: SshKey
    known_hosts: Path

    def try_run(
        self, command: str, *, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command line there, whatever comes of it."""
        options = (
            *("BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=60"),
            *(f"UserKnownHostsFile={self.known_hosts}", "IdentitiesOnly=yes", "LogLevel=ERROR"),
        )
        return subprocess.run(
            [
                *("ssh", "-F", "none", "-i", str(self.key.private), "-p", str(self.port)),
                *(part for option in options for part in ("-o", option)),
                *(f"{self.user}@127.0.0.1", command),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def run(self, command: str, *, timeout_s: float = 120.0) -> str:
        """Runs a command line there, and gives what it prints."""
        done = self.try_run(command, timeout_s=timeout_s)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout
