"""A whole fleet of real processes that is attacked, and what its operator sees of that.

with Site.open(tmp_path) as site:
    before = site.count("broker.client_refused.no_certificate")
    ...
    site.wait_for("broker.client_refused.no_certificate", more_than=before)
"""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from brokers import HOST, Client, RefusedError, free_port
from child_process import Process

from edge_agent.events import Events
from shoal.identity import Identity
from shoal.topics import Topics
from shoal.wire import frame
from shoalctl.cli import run as run_shoal
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.pki.registry import DeviceRegistry

FLEET = "pond"
MEMBERS = ("pi-1", "pi-2", "pi-3", "pi-4")
WAIT_S = 90.0
SHOAL = (sys.executable, "-m", "shoalctl.cli")


@dataclass
class Site:
    """Broker, learner and enrolment of a fleet, each a process, and identities good and bad."""

    directory: Path
    pki: FleetPki
    host: str
    port: int
    server_port: int
    enroll_port: int

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Site]:
        fleet = directory / "fleet"
        pki = make_fleet(fleet, FleetPlan(FLEET))
        ports = {"8883": free_port(), "50051": free_port(), "8444": free_port()}
        for name in ("broker", "learner", "enrollment"):
            path = fleet / f"{name}.toml"
            text = path.read_text()
            for usual, port in ports.items():
                text = text.replace(f" {usual}", f" {port}").replace(f":{usual}", f":{port}")
            path.write_text(text)
        for name in MEMBERS:
            pki.issue(name, Role.DEVICE)
        DeviceRegistry(fleet / "devices").add(*MEMBERS)
        mqtt_port, server_port, enroll_port = ports.values()
        with ExitStack() as stack:
            for ready, *command in (
                ("broker_ready", "broker", "run", "--config", str(fleet / "broker.toml")),
                ("enrollment_ready", "enroll", "serve", "--dir", str(fleet)),
                ("grpc_listening", "learner", "run", "--config", str(fleet / "learner.toml")),
            ):
                process = Process([*SHOAL, *command])
                stack.callback(process.stop)
                process.wait_for_line(ready, timeout_s=WAIT_S)
            yield cls(directory, pki, HOST, mqtt_port, server_port, enroll_port)

    # ------------------------------------------------------------------------------ identities

    def identity(self, name: str) -> Path:
        return self.directory / "fleet" / "identities" / name

    def foreign(self) -> Path:
        """Of another CA, though it trusts this one."""
        path = self.directory / "foreign"
        if not path.exists():
            FleetPki.create(self.directory / "other", FLEET).issue(
                "pi-1", Role.DEVICE, directory=path
            )
            (path / "ca.pem").write_bytes((self.identity("pi-1") / "ca.pem").read_bytes())
        return path

    def expired(self) -> Path:
        path = self.directory / "expired"
        if not path.exists():
            long_ago = datetime.now(UTC) - timedelta(days=60)
            FleetPki.load(self.pki.directory, clock=long_ago.astimezone).issue(
                "pi-1", Role.DEVICE, directory=path, lifetime=timedelta(days=10)
            )
        return path

    # ----------------------------------------------------------------------- what devices do

    def connect(self, name: str, identity: Path | None, act: Callable[[Client], Any]) -> bool:
        """Acts as a client of the broker; whether it was let in.

        Args:
            name: What it calls itself.
            identity: Whose certificate it shows; None for none.
            act: Given the client, once it is in.
        """
        if identity is None:
            context = ssl.create_default_context(cafile=str(self.identity("pi-1") / "ca.pem"))
        else:
            context = Identity.load(identity).ssl_context()
        with suppress(RefusedError), Client(self, name, context=context) as client:  # type: ignore[arg-type] # it has what is asked for
            act(client)
            return True
        return False

    def tell(self, events: Events, name: str) -> None:
        """Sends a device's events the way that its uplink does."""
        topics = Topics(FLEET)
        with Client(self, name, context=Identity.load(self.identity(name)).ssl_context()) as device:  # type: ignore[arg-type]
            for event in events.take():
                device.publish(topics.event(name), frame(event))

    # ------------------------------------------------------------------------ what is seen of it

    def shoal(self, *arguments: str) -> str:
        return subprocess.run(
            [*SHOAL, *arguments], capture_output=True, text=True, check=True, timeout=WAIT_S
        ).stdout.strip()

    def events(self, *arguments: str) -> dict[str, Any]:
        """What an operator's command prints; in this process, which is faster."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = run_shoal(
                [
                    *("devices", "events", *arguments, "-o", "json", "--timeout-s", "60"),
                    *("--server", f"{HOST}:{self.server_port}"),
                    *("--identity", str(self.identity("operator"))),
                ]
            )
        assert code == 0
        answer: dict[str, Any] = json.loads(printed.getvalue())
        return answer

    def count(self, counter: str) -> int:
        found: int = self.events("--limit", "1")["counters"].get(counter, 0)
        return found

    def wait_for(self, counter: str, *, more_than: int) -> int:
        """The count, once it grew; fails if it doesn't."""
        until_s = time.monotonic() + WAIT_S
        while (found := self.count(counter)) <= more_than:
            assert time.monotonic() < until_s, f"{counter} stayed {found}"
        return found

    def wait_to_see(self, kind: str, about: str) -> list[dict[str, Any]]:
        """The events of a kind about a device (or anybody); fails if none comes."""
        until_s = time.monotonic() + WAIT_S
        asked = [*([about] if about else []), "--kind", kind]
        while not (seen := self.events(*asked)["items"]):
            assert time.monotonic() < until_s, f"no {kind} about {about or 'anybody'}"
        return list(seen)


def run(scenario: Any) -> None:  # noqa: ANN401 - a coroutine of any kind
    asyncio.run(asyncio.wait_for(scenario, WAIT_S))
