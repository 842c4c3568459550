"""A device of another architecture: a Debian root, its programs under qemu-user, sshd in front.

    with emulated_device(root, tmp_path, key) as device:
        assert device.run("uname -m") == "aarch64\n"

It has process numbers and mounts of its own, which end with it, whatever ends the test. `/sys` is
not there: onnxruntime's cpuinfo does not survive it under emulation. It has no systemd.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brokers import free_port
from device.fleet_site import wait_until
from device.roots import EMULATED_CPU
from device.shell import Shell, SshKey

_ENTER = """
set -e
mount -t proc proc "$1/proc"
mount -t devpts devpts "$1/dev/pts"
mount -t tmpfs -o mode=0755 tmpfs "$1/run"
mkdir "$1/run/sshd"
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin QEMU_CPU="$2" \
  chroot "$1" /usr/sbin/sshd -D -e -p "$3" -o ListenAddress=127.0.0.1 \
  -o PasswordAuthentication=no -o UsePAM=no -o SetEnv=QEMU_CPU="$2"
"""


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """A running one.

    Attributes:
        root: Its file system, as this machine sees it.
        shell: How to log in, as root.
        log: What its sshd says.
    """

    root: Path
    shell: Shell
    log: Path

    def run(self, command: str, *, timeout_s: float = 120.0) -> str:
        """Runs a command line there, and gives what it prints."""
        return self.shell.run(command, timeout_s=timeout_s)


@contextmanager
def emulated_device(pristine: Path, directory: Path, key: SshKey) -> Iterator[EmulatedDevice]:
    """Starts one from a copy of a root.

    Args:
        pristine: The root; only read.
        directory: Made; where the copy goes, and what is written about it.
        key: Who may log in.
    """
    directory.mkdir()
    root, log, port = directory / "root", directory / "sshd.log", free_port()
    subprocess.run(["cp", "-a", "--reflink=auto", str(pristine), str(root)], check=True)
    try:
        authorized = root / "root/.ssh/authorized_keys"
        authorized.parent.mkdir(mode=0o700)
        shutil.copyfile(key.public, authorized)
        known = directory / "known_hosts"
        host_key = " ".join((root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
        known.write_text(f"[127.0.0.1]:{port} {host_key}\n")
        namespaces = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        with log.open("w") as said:
            inside = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "unshare", *namespaces),
                    *("sh", "-c", _ENTER, "sh", root, EMULATED_CPU, str(port)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            wait_until(
                lambda: "listening on" in log.read_text() or inside.poll() is not None,
                log.read_text,
            )
            assert inside.poll() is None, log.read_text()
            yield EmulatedDevice(root, Shell("root", port, key, known), log)
        finally:
            # The kernel then ends all that runs in there, and lets go of what is mounted.
            inside.kill()
            inside.wait()
    finally:
        shutil.rmtree(root)
