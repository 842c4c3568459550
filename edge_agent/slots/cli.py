"""`shoal-slots`: what an operator, systemd and `shoal flash` call on a device."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from edge_agent.slots import codec, configuration, transitions
from edge_agent.slots.boot import LauncherBroken
from edge_agent.slots.bundle import BundleDamaged
from edge_agent.slots.install import Installer, InstallFailed
from edge_agent.slots.launcher import Launcher, begin, end
from edge_agent.slots.layout import PREFIX, Layout
from edge_agent.slots.rules import end_of
from edge_agent.slots.service_manager import Signals, Upstream
from edge_agent.slots.setup import Options, Setup, restart_agent
from edge_agent.slots.state import Name, Refused, State
from edge_agent.slots.store import Store
from edge_agent.slots.supervisor import WATCHDOG_S
from edge_agent.slots.update import Updater

EXIT_FAILED, EXIT_BAD_ARGUMENTS, EXIT_BUG = 1, 4, 5
SCHEMA: Final = "shoal.v1.SlotStatus"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"shoal-slots: {message}; see '{self.prog} --help'\n")
        raise SystemExit(EXIT_BAD_ARGUMENTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, errors are one line on stderr."""
    defaults = argparse.Namespace(prefix=PREFIX, state_dir=None, config=None, output="table")
    given = _parser().parse_args(arguments, defaults)
    layout = Layout.of(given.prefix, state_dir=given.state_dir, config=given.config)
    command: Callable[[argparse.Namespace, Layout, Store], int] = given.command
    try:
        if command is not _run:
            os.umask(0o022)  # root's files are for the agent's user to read, whoever called
        return command(given, layout, Store(layout))
    except (Refused, BundleDamaged, InstallFailed, LauncherBroken, OSError) as error:
        _say(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 the border of the process
        traceback.print_exc()
        _say(f"a bug: {type(error).__name__}: {error} (please report it)")
        return EXIT_BUG


def _install(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    bundle = given.bundle.absolute()
    done = Installer(layout, store, tell=_say).install(bundle)
    configuration.lay(layout, bundle / "config", tell=_say)
    if not done.changed:
        _say(f"bundle {done.release.bundle_version} is in slot {done.slot} already")
    return _print(given, layout, store.read())


def _switch(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    state = store.change(lambda state, now: transitions.switch(state, given.reason, now))
    if not given.no_restart:
        restart_agent(layout)
    return _print(given, layout, state)


def _rollback(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    state = store.change(lambda state, now: transitions.roll_back(state, given.reason, now))
    if not given.no_restart:
        restart_agent(layout)
    return _print(given, layout, state)


def _setup(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    options = Options(
        given.replace_config, not given.no_user, not given.no_units, given.reason, given.device
    )
    Setup(layout, store, options, tell=_say).run(given.bundle.absolute())
    return _print(given, layout, store.read())


def _status(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    return _print(given, layout, store.read())


def _begin(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    del given
    begin(layout, store)
    return 0


def _ended(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    del given
    how, expired = end_of(os.environ)
    end(layout, store, how, expired=expired)
    return 0


def _run(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    upstream = Upstream(os.environ.get("NOTIFY_SOCKET"))
    with Signals() as signals:
        launcher = Launcher(
            layout, store, signals, log=_say, upstream=upstream, watchdog_s=given.watchdog_s
        )
        return launcher.run_once().code if given.once else launcher.run_forever()


def _apply(given: argparse.Namespace, layout: Layout, store: Store) -> int:
    before = store.read().current
    Updater(layout, store, tell=_say).apply()
    if store.read().current is not before and not given.no_restart:
        restart_agent(layout)
    return 0


def _print(given: argparse.Namespace, layout: Layout, state: State) -> int:
    if given.output == "json":
        item = {**codec.as_dict(state), "prefix": str(layout.prefix), "spare": state.spare}
        item["fallback"] = state.fallback
        sys.stdout.write(json.dumps({"schema": SCHEMA, "items": [item]}) + "\n")
        return 0
    for name in Name:
        slot = state.slot(name)
        mark = "*" if name is state.current else " "
        what = "on trial" if mark == "*" and state.trial is not None else slot.content.value
        version = slot.release.bundle_version if slot.release is not None else "-"
        sys.stdout.write(f"{mark} {name}  {what:<11} {version:<20} {slot.reason}\n")
    for entry in state.history[-given.history :] if given.history else ():
        at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(entry.at_unix_s))
        sys.stdout.write(f"  {at}  {entry.happening:<14} {entry.slot}  {entry.reason}\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"shoal-slots: {' '.join(line.split())}\n")
    sys.stderr.flush()


def _everywhere() -> _Parser:
    """Options that may stand before and after the command: each time its own, without defaults."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--prefix", type=Path, help=f"what is installed (default: {PREFIX})")
    parser.add_argument("--state-dir", type=Path, help="what the agent owns")
    parser.add_argument("--config", type=Path, help="the agent's configuration")
    parser.add_argument("-o", "--output", choices=("table", "json"), help="how to print")
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="shoal-slots",
        parents=[_everywhere()],
        description="Two slots for the agent: one runs, the next version goes into the other.",
        epilog="Exit codes: 0 ok, 1 failed or refused, 4 bad arguments, 5 a bug.",
    )
    parser.set_defaults(history=10)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: object, help_: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[_everywhere()], help=help_, description=help_)
        sub.set_defaults(command=command)
        return sub

    setup = add("setup", _setup, "set this device up from a bundle, and start the agent")
    install = add("install", _install, "put a bundle into the spare slot; what runs runs on")
    for sub in (setup, install):
        sub.add_argument("bundle", type=Path, metavar="DIRECTORY", help="an unpacked bundle")
    setup.add_argument("--replace-config", action="store_true", help="overwrite what differs")
    setup.add_argument("--no-user", action="store_true", help="make no user for the agent")
    setup.add_argument("--no-units", action="store_true", help="leave systemd alone")
    setup.add_argument("--device", default="", help="the name it enrols with")
    setup.add_argument("--reason", default="set up", help="why, for the history")
    switch = add("switch", _switch, "run the spare slot from now on, on trial")
    rollback = add("rollback", _rollback, "run the slot before from now on")
    for sub in (switch, rollback):
        sub.add_argument("--reason", required=True, help="why, for the history")
    status = add("status", _status, "say what is in the slots, and what happened")
    status.add_argument("--history", type=int, default=10, help="entries to show; 0: none")
    run = add("run", _run, "run the agent of the current slot until SIGTERM")
    run.add_argument(
        "--once",
        action="store_true",
        help="until the agent ends: where systemd starts it again, and calls `begin` and `ended`",
    )
    run.add_argument(
        "--watchdog-s",
        type=float,
        default=float(os.environ.get("WATCHDOG_USEC", WATCHDOG_S * 1e6)) / 1e6,
        help="how long it may hang (default: as systemd's WatchdogSec)",
    )
    add("begin", _begin, "note that the agent is about to be started (ExecStartPre)")
    add("ended", _ended, "note how the agent ended (ExecStopPost)")
    apply = add("apply", _apply, "commit what acted, install what the agent fetched")
    for sub in (switch, rollback, apply):
        sub.add_argument("--no-restart", action="store_true", help="leave the agent running")
    return parser
