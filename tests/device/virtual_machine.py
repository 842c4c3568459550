"""A whole machine that boots a card: qemu-system under plain emulation, no KVM and no root needed.

    with virtual_machine(card, disk, tmp_path / "first-boot.log") as machine:
        machine.wait_for("shoal-first-boot: done")

It reaches this machine's loopback address at 10.0.2.2, and nothing else that is ours.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brokers import free_port
from device.fleet_site import wait_until
from device.roots import ROOT_PARTITION, Card

HOST_FROM_INSIDE = "10.0.2.2"
_MEMORY_MB = 1024
_STOP_S = 120.0


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A running one.

    Attributes:
        process: The emulator.
        console: What the machine writes on its serial line.
        ssh_port: On the loopback address: its port 22.
    """

    process: subprocess.Popen[bytes]
    console: Path
    ssh_port: int

    def wait_for(self, text: str, *, timeout_s: float = 600.0) -> None:
        """Waits until the machine wrote that."""
        wait_until(
            lambda: text in self.said() or self.process.poll() is not None,
            lambda: f"the machine never wrote {text!r}:\n{self.said()[-6000:]}",
            timeout_s=timeout_s,
        )
        assert text in self.said(), f"the machine is off:\n{self.said()[-6000:]}"

    def said(self) -> str:
        """What it wrote so far."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def wait_until_off(self) -> None:
        """Waits until it was shut down from inside."""
        assert self.process.wait(_STOP_S) == 0, self.said()[-6000:]


@contextmanager
def virtual_machine(card: Card, disk: Path, console: Path) -> Iterator[VirtualMachine]:
    """Boots a card.

    Args:
        card: Where kernel and initial RAM disk come from: what a boot loader would read.
        disk: The flashed card; written to.
        console: The file that takes its serial line.
    """
    port = free_port()
    network = f"user,id=net,hostfwd=tcp:127.0.0.1:{port}-:22"
    with console.with_suffix(".qemu").open("w") as said:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi"),
                *("-cpu", "Haswell-noTSX", "-smp", "2", "-m", str(_MEMORY_MB), "-no-reboot"),
                *("-kernel", str(card.kernel), "-initrd", str(card.initrd)),
                *(
                    "-append",
                    f"root={ROOT_PARTITION} rw console=ttyS0 mitigations=off tsc=unstable",
                ),
                *("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"),
                *("-netdev", network, "-device", "virtio-net-pci,netdev=net"),
                *("-device", "virtio-rng-pci", "-display", "none", "-monitor", "none"),
                *("-serial", f"file:{console}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield VirtualMachine(process, console, port)
    finally:
        process.kill()
        process.wait()
