"""A fleet on this machine for devices under emulation: broker, learner and enrolment, as typed.

with FleetSite.open(tmp_path / "fleet", host="127.0.0.1") as site:
    token = site.token("pi-7")
    site.wait_for_device("pi-7", lambda item: item["health"] == "online")
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokers import HOST, free_port
from child_process import Process

FLEET = "reef"
SHOAL = (sys.executable, "-m", "shoalctl.cli")
LOOK_EVERY_S = 1.0
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def items(self) -> list[Item]:
        """Those of its envelope."""
        found: list[Item] = json.loads(self.out)["items"]
        return found


def shoal(*arguments: str | Path, timeout_s: float = 120.0) -> Answer:
    """Runs `shoal` as an operator does."""
    done = subprocess.run(
        [*SHOAL, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def said(*arguments: str | Path, timeout_s: float = 120.0) -> Answer:
    """The same, of a command that must succeed."""
    answer = shoal(*arguments, timeout_s=timeout_s)
    assert answer.code == 0, f"shoal {' '.join(map(str, arguments))}: {answer}"
    return answer


@dataclass(slots=True)
class FleetSite:
    """A running fleet.

    Attributes:
        directory: What `shoal fleet init` made.
        host: How devices reach it.
        broker_port: MQTT.
        server_port: gRPC of the learner.
        enrollment_port: gRPC of the enrolment service.
        broker: Its process.
        learner: Its process.
        enrollment: Its process.
    """

    directory: Path
    host: str
    broker_port: int
    server_port: int
    enrollment_port: int
    broker: Process
    learner: Process
    enrollment: Process

    @classmethod
    @contextmanager
    def open(cls, directory: Path, *, host: str) -> Iterator[FleetSite]:
        """Makes a fleet that devices reach by `host`, and runs it on the loopback address."""
        said("fleet", "init", FLEET, "--dir", directory, "--host", host, "--host", HOST)
        mqtt, grpc, enroll = free_port(), free_port(), free_port()
        _rewrite(directory / "broker.toml", {"port": mqtt, "host": HOST})
        _rewrite(directory / "enrollment.toml", {"port": enroll, "host": HOST})
        text = (directory / "enrollment.toml").read_text()
        for usual, ours in ((8883, mqtt), (50051, grpc), (8444, enroll)):
            text = text.replace(f":{usual}", f":{ours}")
        (directory / "enrollment.toml").write_text(text)
        learner = directory / "learner.toml"
        text = learner.read_text().replace("port = 8883", f"port = {mqtt}")
        text = text.replace("port = 50051", f"port = {grpc}")
        text = text.replace('host = "0.0.0.0"', f'host = "{HOST}"')
        head, _, tail = text.partition("\n[")
        # Every version that acted is kept: each decision can be made again.
        head += "\npolicies_kept = 4096\ntensorboard = false\n"
        learner.write_text(f"{head}\n[{tail}\n[training]\nbatch_steps = 256\n")
        with ExitStack() as stack:

            def start(ready: str, *arguments: str | Path) -> Process:
                process = Process([*SHOAL, *map(str, arguments)])
                stack.callback(process.stop)
                process.wait_for_line(ready, timeout_s=60.0)
                return process

            yield cls(
                directory,
                host,
                mqtt,
                grpc,
                enroll,
                start("broker_ready", "broker", "run", "--config", directory / "broker.toml"),
                start("grpc_listening", "learner", "run", "--config", learner),
                start("enrollment_ready", "enroll", "serve", "--dir", directory),
            )

    def token(self, device: str) -> str:
        """A token that enrols this device, once."""
        answer = said("enroll", "token", "create", "--dir", self.directory, "--device", device)
        return answer.out.strip()

    @property
    def fingerprint(self) -> str:
        """Of the fleet's CA."""
        return said("enroll", "fingerprint", "--dir", self.directory).out.strip()

    @property
    def learner_state(self) -> Path:
        """The directory of journal, policies and checkpoints."""
        return self.directory / "learner"

    def ask(self, *arguments: str | Path) -> Answer:
        """A view of the fleet, as its operator."""
        operator = self.directory / "identities" / "operator"
        server = f"{HOST}:{self.server_port}"
        return said(*arguments, "--identity", operator, "--server", server, "-o", "json")

    def device(self, name: str) -> Item | None:
        """One row of `shoal devices ls`."""
        rows = self.ask("devices", "ls").items
        return next((row for row in rows if name in (row.get("device_id"), row.get("name"))), None)

    def wait_for_device(
        self, name: str, fit: Callable[[Item], bool], *, timeout_s: float = 240.0
    ) -> Item:
        """Looks at a device until it is as it should be."""
        found: list[Item] = []

        def look() -> bool:
            row = self.device(name)
            found[:] = [row] if row is not None else []
            return row is not None and fit(row)

        wait_until(look, lambda: f"{name} is not so: {found}", timeout_s=timeout_s)
        return found[0]

    def events(self, name: str, kind: str) -> list[Item]:
        """What the fleet knows to have happened to a device, of one kind, the newest first."""
        return self.ask("devices", "events", name, "--kind", kind).items

    def enrollment_counters(self) -> Mapping[str, int]:
        """How often what happened at the enrolment service."""
        answer = said("enroll", "events", "--dir", self.directory, "-o", "json")
        counters: Mapping[str, int] = json.loads(answer.out)["counters"]
        return counters

    def reproduce(self, device: str, *, run: str | None = None) -> tuple[int, Item]:
        """The exit code and the report of `shoal reproduce` over a run."""
        chosen = () if run is None else ("--run", run)
        answer = shoal(
            *("reproduce", "--state", self.learner_state, "--device", device, *chosen),
            *("-o", "json"),
            timeout_s=300.0,
        )
        assert answer.out, answer
        return answer.code, answer.items[0]


def wait_until(
    fit: Callable[[], bool], tell: Callable[[], str], *, timeout_s: float = 240.0
) -> None:
    """Looks again and again at what can't wake anybody, such as another machine's files."""
    pause = threading.Event()
    end = time.monotonic() + timeout_s
    while not fit():
        assert time.monotonic() < end, tell()
        pause.wait(LOOK_EVERY_S)


def _rewrite(file: Path, values: Mapping[str, str | int]) -> None:
    head, bracket, tail = file.read_text().partition("\n[")
    lines = []
    for line in head.splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {json.dumps(values[key])}" if key in values else line)
    file.write_text("\n".join(lines) + bracket + tail)
