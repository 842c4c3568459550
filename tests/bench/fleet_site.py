"""A fleet's keys and its embedded broker, for measurements: the real program in its own process."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoalctl.pki.pki import FleetPki, Role

HOST = "127.0.0.1"
FLEET = "bench"
BROKER = ("-m", "shoalctl.cli")
"""What runs the embedded broker, before the words `broker run`."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes have used.

    Attributes:
        cpu_s: Seconds of processor time, user and system.
        rss_bytes: Resident memory now.
    """

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Site:
    """A broker that runs, and the identities of its fleet.

    Attributes:
        identities: A directory with one identity directory a name.
        port: Of the broker, on `HOST`.
        broker_pid: Of `shoal broker run`, whose child is the server itself.
    """

    identities: Path
    port: int
    broker_pid: int

    def identity(self, name: str) -> Path:
        """The identity directory of a name."""
        return self.identities / name

    def broker_usage(self) -> Usage:
        """What the broker used so far, its server included."""
        return usage_of(self.broker_pid)


def usage_of(pid: int) -> Usage:
    """What a process and its children used so far."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    times = [each.cpu_times() for each in family]
    return Usage(
        sum(each.user + each.system for each in times),
        sum(each.memory_info().rss for each in family),
    )


@contextmanager
def running_site(
    directory: Path, devices: Sequence[str], *, program: Sequence[str] = BROKER
) -> Iterator[Site]:
    """Makes a fleet and runs its embedded broker until the block ends.

    Args:
        directory: Empty, on the disk that the broker should write to.
        devices: Whose keys are made, and whom it admits beside the learner.
        program: What runs it: arguments of this Python.
    """
    pki = FleetPki.create(directory / "pki", FLEET)
    for name in devices:
        pki.issue(name, Role.DEVICE)
    for role in (Role.LEARNER, Role.BROKER):
        pki.issue(str(role), role)
    state = directory / "broker"
    state.mkdir()
    (state / "devices").write_text("".join(f"{name}\n" for name in devices), "utf-8")
    identities = directory / "pki" / "identities"
    with subprocess.Popen(
        [
            *(sys.executable, *program, "broker", "run", "--fleet", FLEET),
            *("--identity", str(identities / "broker"), "--state-dir", str(state)),
            *("--host", HOST, "--port", "0"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).resolve().parents[1],  # where `bench` can be imported from
    ) as process:
        try:
            yield Site(identities, _port_of(process), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _port_of(broker: subprocess.Popen[str]) -> int:
    """Waits until the broker listens; what it says later is read and forgotten."""
    ready = threading.Event()
    said: list[str] = []
    port: list[int] = []

    def listen() -> None:
        assert broker.stderr is not None
        for line in broker.stderr:
            if ready.is_set():
                continue
            said.append(line)
            if '"broker_ready"' in line:
                port.append(int(json.loads(line)["port"]))
                ready.set()
        ready.set()

    threading.Thread(target=listen, name="broker-stderr", daemon=True).start()
    ready.wait(START_TIMEOUT_S)
    if not port:
        raise SystemExit(f"the broker did not start: {''.join(said[-3:]) or 'it said nothing'}")
    return port[0]
