"""A host to flash: a real sshd on a loopback port, whose device lies in a directory of a test.

    with ssh_host(tmp_path) as host:
        run(["flash", "ssh", host.login, *host.options, "--bundle", str(bundle)])

Every connection is an `sshd -i` of its own, behind a relay that can cut it. Signals go only to
processes that were started here.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from bundles import CONTENTS, KEY, manifest_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.slots.codec import decode
from edge_agent.slots.state import Slot, State
from shoal.bundle import sign
from shoal.bundle_archive import pack
from shoalctl.cli import run

HOST = "127.0.0.1"
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

needs_sshd = pytest.mark.skipif(
    SSHD is None,
    reason="!!! sshd is not installed: tests of flashing over SSH are SKIPPED "
    "(apt-get install openssh-server)",
)


def system_python() -> str:
    """The minor version of the system's own Python, `3.11`: what devices in tests have."""
    found = shutil.which("python3", path=SYSTEM_PATH)
    if found is None:
        pytest.skip("the system has no python3 of its own")
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run(
        [found, "-I", "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


_CONFIG = """
HostKey {key}
AuthorizedKeysFile {authorized}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
LogLevel ERROR
Subsystem sftp {sftp}
SetEnv {environment}
"""

FAKE_SLOTS = Path(__file__).with_name("fake_slots.py")
INSTALLER = """#!/bin/sh
set -eu
exec {python} "$(dirname -- "$0")/boot/fake_slots.py" setup "$(dirname -- "$0")" "$@"
"""


@dataclass(slots=True)
class SshHost:
    """A device that is reached by SSH.

    Attributes:
        root: All of it is below.
        port: Of the loopback address.
        client_key: What logs in.
        known_hosts: A file that knows its host key.
    """

    root: Path
    port: int
    client_key: Path
    known_hosts: Path
    cut_after: list[int] = field(default_factory=list)
    connections: int = 0

    @property
    def login(self) -> str:
        """What is typed."""
        return f"{HOST}:{self.port}"

    @property
    def prefix(self) -> Path:
        """Where its agent is."""
        return self.root / "opt"

    @property
    def staging(self) -> Path:
        """Where bundles are uploaded to."""
        return self.root / "home" / ".cache" / "shoal" / "flash"

    @property
    def bin(self) -> Path:
        """Programs in here are found before the system's own."""
        return self.root / "bin"

    @property
    def options(self) -> list[str]:
        """What every command for it needs."""
        return [
            *("--identity", str(self.client_key), "--known-hosts", str(self.known_hosts)),
            *("--prefix", str(self.prefix), "--no-systemd"),
        ]

    @property
    def slots(self) -> State:
        """What is in its slots."""
        return decode((self.prefix / "slots.json").read_bytes())

    @property
    def current(self) -> Slot:
        """The slot that runs."""
        state = self.slots
        assert state.current is not None
        return state.slot(state.current)

    @property
    def running(self) -> str:
        """The version of the bundle that runs."""
        release = self.current.release
        assert release is not None
        return release.bundle_version

    def pretend(self, program: str, script: str) -> None:
        """Has a program of the host say something else."""
        path = self.bin / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def cut_link_after(self, *counts: int) -> None:
        """Cuts each next connection when so many bytes were sent on it; then no more."""
        self.cut_after[:] = counts


def fake_bundle(
    path: Path,
    *,
    behaviour: str = "acts",
    size: int = 1000,
    pip: bool = False,
    key: Ed25519PrivateKey = KEY,
    **values: str,
) -> Path:
    """A bundle whose agent does as it is told: `acts`, `dies`, `holds`, or fails its `health`."""
    contents: Mapping[str, bytes] = {
        **CONTENTS,
        "boot/behaviour": behaviour.encode(),
        "boot/fake_slots.py": FAKE_SLOTS.read_bytes(),
        "config/seed.json": b'{"host": "fleet.example.org", "port": 8444}\n',
        "install.sh": INSTALLER.format(python=sys.executable).encode(),
        "wheels/shoal-0.1.0-py3-none-any.whl": os.urandom(size),
    }
    if pip:
        contents = {**contents, "wheels/pip-26.0-py3-none-any.whl": b"pip"}
    given = {"arch": os.uname().machine, "python": system_python()}
    manifest = manifest_of(contents, **(given | values))
    with path.open("wb") as out:
        pack(out, manifest, sign(manifest, key), contents)
    return path


OVERLAYS = ("etc", "opt", "run", "usr/local", "var/lib")
_NAMESPACE = """
set -e
mount -t tmpfs tmpfs "$1"
for directory in {overlays}; do
  mkdir -p "$1/$directory/upper" "$1/$directory/work"
  mount -t overlay overlay "/$directory" \
    -o "lowerdir=/$directory,upperdir=$1/$directory/upper,workdir=$1/$directory/work"
done
mkdir -p /run/sshd /run/systemd/system
echo ready
exec cat
"""


@contextmanager
def own_system(root: Path) -> Iterator[list[str]]:
    """What a command starts with to run in a system of its own, whose changes nobody else sees.

    Its /etc, /opt, /run, /usr/local and /var/lib are this machine's, until it writes to them.
    """
    mounts = root / "system"
    mounts.mkdir(parents=True)
    script = _NAMESPACE.format(overlays=" ".join(OVERLAYS))
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    with subprocess.Popen(
        [*enter, str(mounts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            assert holder.stderr is not None
            pytest.skip(f"no system of its own here, it takes root: {holder.stderr.read()!r}")
        yield ["nsenter", "--target", str(holder.pid), "--mount"]
        holder.communicate()


@contextmanager
def ssh_host(
    root: Path,
    *,
    environment: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> Iterator[SshHost]:
    """Starts a device's sshd; ends with every process it started.

    Args:
        root: Where its home and its keys are.
        environment: Variables of its sessions.
        inside: What its sshd is started by, from `own_system`.
    """
    if SSHD is None:
        pytest.skip("sshd is not installed")
    root.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "home"):
        (root / name).mkdir()
    if os.geteuid() == 0 and not inside:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    client_key = asyncssh.generate_private_key("ssh-ed25519")
    for name, key in (("host_key", host_key), ("client_key", client_key)):
        key.write_private_key(str(root / name))
        (root / name).chmod(0o600)
    client_key.write_public_key(str(root / "authorized_keys"))
    known_hosts = root / "known_hosts"
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    public = host_key.export_public_key("openssh").decode().split()
    known_hosts.write_text(f"[{HOST}]:{port} {public[0]} {public[1]}\n")
    variables = {
        "HOME": str(root / "home"),
        "PATH": f"{root / 'bin'}:{SYSTEM_PATH}",
        **(environment or {}),
    }
    (root / "sshd_config").write_text(
        _CONFIG.format(
            key=root / "host_key",
            authorized=root / "authorized_keys",
            sftp="internal-sftp",
            environment=" ".join(f'"{name}={value}"' for name, value in variables.items()),
        )
    )
    host = SshHost(root, port, root / "client_key", known_hosts)
    relay = _Relay(listener, host, inside)
    try:
        yield host
    finally:
        relay.close()


class _Relay:
    """Accepts connections and hands each to an sshd of its own."""

    def __init__(self, listener: socket.socket, host: SshHost, inside: Sequence[str]) -> None:
        self._listener = listener
        self._inside = inside
        self._host = host
        self._sshds: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._accepter = threading.Thread(target=self._accept, daemon=True)
        self._accepter.start()

    def close(self) -> None:
        """Ends everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepter.join()
        for sshd in self._sshds:
            sshd.kill()
            sshd.wait()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                outer, _ = self._listener.accept()
            except OSError:
                return
            self._host.connections += 1
            limit = self._host.cut_after.pop(0) if self._host.cut_after else None
            inner, theirs = socket.socketpair()
            with theirs, (self._host.root / "sshd.log").open("ab") as log:
                sshd = subprocess.Popen(
                    [
                        *self._inside,
                        str(SSHD),
                        "-i",
                        "-e",
                        "-f",
                        str(self._host.root / "sshd_config"),
                    ],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=log,
                )
            self._sshds.append(sshd)
            thread = threading.Thread(target=_relay, args=(outer, inner, limit, sshd), daemon=True)
            self._threads.append(thread)
            thread.start()


def _relay(
    outer: socket.socket, inner: socket.socket, limit: int | None, sshd: subprocess.Popen[bytes]
) -> None:
    with outer, inner:
        down = threading.Thread(target=_pump, args=(inner, outer, None, sshd), daemon=True)
        down.start()
        _pump(outer, inner, limit, sshd)
        down.join()


def _pump(
    source: socket.socket, sink: socket.socket, limit: int | None, sshd: subprocess.Popen[bytes]
) -> None:
    sent = 0
    with suppress(OSError):
        while piece := source.recv(16 << 10):
            sent += len(piece)
            if limit is not None and sent > limit:
                sshd.kill()
                break
            sink.sendall(piece)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def flash(host: SshHost, bundle: Path, *arguments: str | Path) -> int:
    """Runs `shoal flash ssh` for one host; the exit code."""
    words = ["flash", "ssh", host.login, *host.options, "--bundle", bundle, *arguments]
    return run([str(word) for word in words])


def items(output: str) -> list[dict[str, Any]]:
    """The items of the envelope that a command wrote."""
    envelope = json.loads(output)
    assert envelope["schema"] == "shoal.v1.FlashSshReport"
    found: list[dict[str, Any]] = envelope["items"]
    return found
