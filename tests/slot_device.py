"""A device with two slots, each with an agent that behaves in a way of its own, and its launcher.

    with device.run() as launcher:
        launcher.wait_for_line("slot b: started")

The launcher runs from a flat copy of `edge_agent.slots`, by `python3 -I -S`: nothing but the
standard library can be imported there.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from child_process import Process
from slot_bundles import AGENT

from edge_agent.slots import transitions
from edge_agent.slots.boot import boot_files
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Moment, Name, Release, State
from edge_agent.slots.store import Store

LONG_S = 100.0


@dataclass(frozen=True)
class SlotDevice:
    """What was set up."""

    directory: Path

    @property
    def layout(self) -> Layout:
        return Layout.of(self.directory / "prefix")

    @property
    def store(self) -> Store:
        return Store(self.layout)

    def fill(self, name: Name, version: str, *behaviour: str) -> None:
        """Puts an agent into a slot; the state doesn't know of it yet."""
        stand_in = self.layout.venv(name) / "bin"
        stand_in.mkdir(parents=True)
        (stand_in / "behaviour.txt").write_text(" ".join([version, *behaviour]))
        shoal = stand_in / "shoal"
        shoal.write_text(f"#!{sys.executable} -IS\n{AGENT}\nsys.exit(main())\n")
        shoal.chmod(0o755)

    def command(self, *arguments: str) -> list[str]:
        boot = str(self.directory / "boot")
        return [sys.executable, "-I", "-S", boot, *arguments, "--prefix", str(self.layout.prefix)]

    @contextmanager
    def run(self, *arguments: str, listener: Path | None = None) -> Iterator[Process]:
        """The launcher."""
        before = os.environ.get("NOTIFY_SOCKET")
        if listener is not None:
            os.environ["NOTIFY_SOCKET"] = str(listener)
        try:
            launcher = Process(self.command("run", *arguments))
        finally:
            os.environ.pop("NOTIFY_SOCKET", None)
            if before is not None:
                os.environ["NOTIFY_SOCKET"] = before
        try:
            yield launcher
        finally:
            launcher.stop()


def make_device(directory: Path, trial: Mapping[str, float] | None = None) -> SlotDevice:
    """A device with nothing in its slots."""
    device = SlotDevice(directory)
    for path in (device.layout.state_dir, device.layout.config.parent, directory / "boot"):
        path.mkdir(parents=True)
    rules = "".join(f"{key} = {value}\n" for key, value in (trial or {}).items())
    device.layout.config.write_text(f'state_dir = "{device.layout.state_dir}"\n[trial]\n{rules}')
    for name, content in boot_files().items():
        (directory / "boot" / name).write_bytes(content)
    return device


def on_trial(device: SlotDevice, *behaviour: str) -> SlotDevice:
    """Slot a is committed, and slot b, which behaves so, was just switched to."""
    device.fill(Name.A, "1.0")
    device.fill(Name.B, "2.0", *behaviour)

    def made(state: State, now: Moment) -> State:
        for digit in "12":
            release = Release(digit * 64, f"{digit}.0", "0.1.0")
            state = transitions.start_install(state, release, now)
            state = transitions.finish_install(state, release, now)
            state = transitions.switch(state, f"to {digit}.0", now)
            if digit == "1" and state.trial is not None:
                state = transitions.commit(state, state.trial.number, "it acted", now)
        return state

    device.store.change(made)
    return device


class Manager:
    """What systemd hears."""

    def __init__(self, directory: Path) -> None:
        self.address = directory / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.address))
        self.heard: list[str] = []

    def close(self) -> None:
        self._socket.close()

    def wait_for(self, assignment: str, *, times: int = 1) -> None:
        """Fails if it is not said so often."""
        deadline_s = time.monotonic() + LONG_S
        while self.heard.count(assignment) < times:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready, _, _ = select.select([self._socket], [], [], left_s)
            assert ready, f"never said {assignment}: {self.heard}"
            self.heard += self._socket.recv(4096).decode().splitlines()
