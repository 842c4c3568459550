"""Kills whatever changes a device's slots at each step that reaches the disk; run as a program.

    python3 -I -S tests/slot_faults.py DIRECTORY OPERATION

does an operation once and counts its steps; then, for each of them, makes a device, does the
operation in a process that kills itself with SIGKILL before that step, starts the launcher as after
a start of the device, does the operation again, and prints a row. A power cut also loses what was
written and not yet synced, and comes back in another boot.

The wheels of these bundles are made up, and so is their installation; the agent is a shell script
that says which slot it acts in. It needs nothing but the standard library, as what it tests. Each
process is a fork of this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from killer import Killer

from edge_agent.slots import account, launcher, store, supervisor, transitions, update
from edge_agent.slots.cli import main as slots_main
from edge_agent.slots.install import Installer
from edge_agent.slots.layout import Layout
from edge_agent.slots.setup import Options, Setup
from edge_agent.slots.state import Name
from edge_agent.slots.store import Store
from edge_agent.slots.transitions import End

WAIT_S = 60.0
REACHES_THE_PLATTER = ("fsync", "sync", "replace", "rename")
AGENT = """#!/bin/sh
case "$1" in --version) exit 0;; esac
[ "$2" = check ] && exit 0
echo "$SHOAL_SLOT {version}" > {acts}
exec sleep 600
"""


@dataclass(frozen=True)
class World:
    """A device in a directory, the bundles that it may be given, and the boot it is in."""

    directory: Path
    boot_id: str = "first"

    @property
    def layout(self) -> Layout:
        return Layout.of(self.directory / "prefix")

    @property
    def store(self) -> Store:
        return Store(self.layout)

    @property
    def acts(self) -> Path:
        return self.directory / "acts"

    def bundle(self, version: str) -> Path:
        return self.layout.updates / f"bundle-{version}"


def write_bundle(world: World, version: str) -> None:
    directory = world.bundle(version)
    files = {
        f"wheels/shoal-{version}.whl": b"wheel " + version.encode(),
        "config/agent.toml": f'state_dir = "{world.layout.state_dir}"\n'.encode(),
        "config/policy.pub": b"00" * 32,
        "boot/__main__.py": f"# {version}\n".encode(),
        "boot/__init__.py": b"",
    }
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    listed = [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]
    table = {"schema": 1, "version": version, "shoal_version": version, "files": listed}
    (directory / "manifest.json").write_text(json.dumps(table))
    (directory / "manifest.sig").write_bytes(bytes(64))


def made_up(world: World) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What stands in for the commands that an installation runs."""

    def run(command: list[str], **_more: object) -> subprocess.CompletedProcess[str]:
        if "--without-pip" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
        elif "install" in command:
            version = Path(command[-1]).name.removeprefix("shoal-").removesuffix(".whl")
            for name in Name:
                directory = world.layout.venv(name) / "bin"
                if directory.is_dir() and not any(directory.iterdir()):
                    shoal = directory / "shoal"
                    shoal.write_text(AGENT.format(version=version, acts=world.acts))
                    shoal.chmod(0o755)
                    (directory / "python").write_text("a Python")
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


@contextlib.contextmanager
def standing_in(world: World) -> Iterator[None]:
    """Within it, commands are made up, and the boot is the world's."""
    boot = world.directory / "boot_id"
    boot.write_text(world.boot_id)
    itself = [sys.executable, "-I", "-S", __file__, str(world.directory)]
    replaced = [
        (account, "run", made_up(world)),
        (store, "_BOOT_ID", boot),
        (launcher, "own_command", lambda _layout: [*itself, world.boot_id]),
        (supervisor, "TICK_S", 0.05),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in replaced]
    for where, name, value in replaced:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def set_up(world: World, version: str = "1") -> None:
    Setup(world.layout, world.store, Options()).run(world.bundle(version))


def commit(world: World) -> None:
    say_acted(world)
    update.Updater(world.layout, world.store).apply()


def install(world: World) -> None:
    Installer(world.layout, world.store).install(world.bundle("2"))


def switch(world: World) -> None:
    state = world.store.read()
    if state.current is not Name.B:
        world.store.change(lambda state, now: transitions.switch(state, "to 2", now))


def roll_back(world: World) -> None:
    if world.store.read().current is not Name.A:
        world.store.change(lambda state, now: transitions.roll_back(state, "to 1", now))


def die(world: World) -> None:
    """The last of the deaths that a trial may have."""
    launcher.begin(world.layout, world.store)
    launcher.end(world.layout, world.store, End(died=True, reason="it died"), expired=False)


def expire(world: World) -> None:
    launcher.end(world.layout, world.store, End(died=False, reason="time"), expired=True)


def say_acted(world: World) -> None:
    trial = world.store.read().trial
    if trial is not None:
        word = {"schema": 1, "trial": trial.number, "episodes": 3, "chunks": 1}
        world.layout.acted.write_text(json.dumps({**word, "policy_version": 7}))


def ask_for(world: World, version: str) -> None:
    manifest = (world.bundle(version) / "manifest.json").read_bytes()
    world.layout.request.write_text(
        json.dumps(
            {
                "schema": 1,
                "bundle": world.bundle(version).name,
                "digest": hashlib.sha256(manifest).hexdigest(),
                "reason": f"to {version}",
            }
        )
    )


def apply(world: World) -> None:
    update.Updater(world.layout, world.store).apply()


def begin(world: World) -> None:
    launcher.begin(world.layout, world.store)


@dataclass(frozen=True)
class Operation:
    """What is interrupted.

    Attributes:
        before: What a device did until then; not interrupted.
        do: What is; done again afterwards, it goes through.
        after: The versions that may run when it was interrupted.
        finally_: The version that runs once it went through.
    """

    before: tuple[Callable[[World], object], ...]
    do: Callable[[World], object]
    after: tuple[str, ...]
    finally_: str


COMMITTED = (set_up, commit)
ON_TRIAL = (*COMMITTED, install, switch)
OPERATIONS = {
    "setup": Operation((), set_up, (), "1"),
    "install": Operation(COMMITTED, install, ("1",), "1"),
    "install_over_a_condemned": Operation((*ON_TRIAL, roll_back), install, ("1",), "1"),
    "switch": Operation((*COMMITTED, install), switch, ("1", "2"), "2"),
    "begin": Operation(ON_TRIAL, begin, ("2",), "2"),
    "commit": Operation((*ON_TRIAL, say_acted), apply, ("2",), "2"),
    "rollback": Operation(ON_TRIAL, roll_back, ("1", "2"), "1"),
    "last_death": Operation((*ON_TRIAL, die, die), die, ("1", "2"), "1"),
    "expiry": Operation((*ON_TRIAL, begin), expire, ("1", "2"), "1"),
    "verify": Operation((*COMMITTED, lambda world: ask_for(world, "2")), apply, ("1", "2"), "2"),
    "supersede": Operation(
        (*ON_TRIAL, lambda world: ask_for(world, "3")), apply, ("1", "2", "3"), "3"
    ),
}


def make_world(directory: Path, operation: str) -> World:
    """A device just before an operation."""
    world = World(directory)
    world.layout.updates.mkdir(parents=True)
    os.mkfifo(world.acts)
    for version in ("1", "2", "3"):
        write_bundle(world, version)
    with standing_in(world):
        for step in OPERATIONS[operation].before:
            step(world)
    return world


def count(operation: str, directory: Path) -> list[str]:
    """The steps of an operation that reach the disk, in their order."""
    world, killer = make_world(directory, operation), Killer()
    with standing_in(world), killer.watching():
        OPERATIONS[operation].do(world)
    shutil.rmtree(directory)
    return killer.steps


class Watcher:
    """Reads what agents say when they act."""

    def __init__(self, world: World) -> None:
        self._fifo = os.open(world.acts, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def close(self) -> None:
        os.close(self._fifo)

    def next(self) -> str:
        """The slot and the version that act next; empty if none does in time."""
        deadline_s = time.monotonic() + WAIT_S
        while b"\n" not in self._rest:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready, _, _ = select.select([self._fifo], [], [], left_s)
            if not ready:
                return ""
            self._rest += os.read(self._fifo, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


def fork(work: Callable[[], object]) -> int:
    """A process of its own that does this; its id."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            result = work()
            status = result if isinstance(result, int) else 0
        finally:
            os._exit(status)
    return child


def ended(child: int) -> int:
    """Its exit code; negative: the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_until(world: World, last: Callable[[str], bool]) -> list[str]:
    """Starts the launcher as after a start of the device, until an act is the last to wait for."""
    watcher = Watcher(world)
    acts: list[str] = []
    with standing_in(world):
        child = fork(lambda: slots_main(["run", "--prefix", str(world.layout.prefix)]))
    try:
        while not acts or (acts[-1] and not last(acts[-1])):
            acts.append(watcher.next())
    finally:
        os.kill(child, signal.SIGTERM)
        ended(child)
        watcher.close()
    return acts


def case(directory: Path, name: str, step: int, *, power_cut: bool) -> dict[str, object]:
    """One row of the table; its `steps` are all that there are when it was not killed."""
    operation = OPERATIONS[name]
    shutil.rmtree(directory, ignore_errors=True)
    world = make_world(directory, name)
    killer = Killer(step, power_cut)
    if name.startswith("install"):
        killer.unsynced = world.layout.slot(world.store.read().spare)

    def interrupted() -> None:
        with standing_in(world), killer.watching():
            operation.do(world)

    status = ended(fork(interrupted))
    if status != -signal.SIGKILL:
        return {"status": status}
    after = World(directory, "second" if power_cut else "first")
    row: dict[str, object] = {"status": status, "step": step, "power_cut": power_cut}
    if operation.after:
        waits = after.layout.request.exists()
        row["acts"] = run_until(
            after, lambda act: not waits or act.endswith(f" {operation.finally_}")
        )
        state = after.store.read()
        row["content"] = "" if state.current is None else state.slot(state.current).content

    def again() -> None:
        with standing_in(after):
            operation.do(after)

    row["again"] = ended(fork(again))
    row["then"] = run_until(after, lambda _act: True)[0]
    state = after.store.read()
    row["current"] = state.current
    row["link"] = str(after.layout.current.readlink())
    return row


def main(arguments: list[str]) -> int:
    """Prints the rows of an operation as JSON lines."""
    directory, name = Path(arguments[0]), arguments[1]
    if arguments[2:] == ["apply"]:  # as the launcher calls itself
        world = World(directory, name)
        with standing_in(world):
            apply(world)
        return 0
    steps = count(name, directory / "counted")
    for power_cut in (False, True):
        for step, what in enumerate(steps):
            if not power_cut or what.partition(" ")[0] in REACHES_THE_PLATTER:
                row = case(directory / "world", name, step, power_cut=power_cut)
                sys.stdout.write(json.dumps({**row, "name": what}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
