"""Stands for `shoal-slots` on a host that is flashed in tests: real states, nothing installed.

What its agent does is said by `boot/behaviour` of the bundle, and done at once.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from edge_agent.slots import configuration, transitions
from edge_agent.slots.bundle import check_files, read_manifest
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Content, Refused
from edge_agent.slots.store import Store


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", type=Path, default=None)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("setup", "install", "switch", "rollback", "status"):
        sub = commands.add_parser(name)
        sub.add_argument("--prefix", type=Path, default=argparse.SUPPRESS)
        if name in {"setup", "install"}:
            sub.add_argument("bundle", type=Path)
        if name != "install":
            sub.add_argument("--reason", default="set up")
        if name == "setup":
            sub.add_argument("--no-units", action="store_true")
            sub.add_argument("--no-user", action="store_true")
            sub.add_argument("--device", default="")
    given = parser.parse_args()
    layout = Layout.of(given.prefix)
    layout.prefix.mkdir(parents=True, exist_ok=True)
    store = Store(layout)
    try:
        if given.command in {"setup", "install"}:
            bundle = given.bundle.absolute()
            _install(layout, store, bundle)
            layout.config.parent.mkdir(exist_ok=True)
            configuration.lay(
                layout,
                bundle / "config",
                device=getattr(given, "device", ""),
                tell=lambda line: sys.stderr.write(f"shoal-slots: {line}\n"),
            )
        if given.command in {"setup", "switch"}:
            store.change(lambda state, now: transitions.switch(state, given.reason, now))
            _act(layout, store)
        if given.command == "rollback":
            store.change(lambda state, now: transitions.roll_back(state, given.reason, now))
    except Refused as error:
        sys.stderr.write(f"shoal-slots: {error}\n")
        return 1
    return 0


def _install(layout: Layout, store: Store, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    check_files(bundle, manifest)
    (layout.prefix / "installs").open("a").write(f"{manifest.release.bundle_version}\n")
    if not layout.wrapper.exists():
        layout.wrapper.parent.mkdir(exist_ok=True)
        launcher = layout.wrapper.with_name("fake_slots.py")
        shutil.copy(Path(__file__), launcher)
        layout.wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "{launcher}" "$@"\n')
        layout.wrapper.chmod(0o755)
    state = store.read()
    mine = state.slot(state.spare)
    if mine.release == manifest.release and mine.content is Content.INSTALLED:
        return
    state = store.change(lambda state, now: transitions.start_install(state, manifest.release, now))
    slot = layout.slot(state.spare)
    shutil.rmtree(slot, ignore_errors=True)
    shutil.copytree(bundle / "boot", slot)
    if (slot / "behaviour").read_text() == "health":
        store.change(lambda state, now: transitions.fail_install(state, "it is ill", now))
        raise Refused("the health check failed: it is ill")
    store.change(lambda state, now: transitions.finish_install(state, manifest.release, now))


def _act(layout: Layout, store: Store) -> None:
    state = store.read()
    if state.current is None or state.trial is None:
        return
    behaviour = (layout.slot(state.current) / "behaviour").read_text()
    number = state.trial.number
    if behaviour == "acts":
        store.change(
            lambda state, now: transitions.commit(state, number, "it acted 3 episodes", now)
        )
    elif behaviour == "dies" and state.fallback is not None:
        store.change(lambda state, now: transitions.roll_back(state, "it died 3 times", now))


if __name__ == "__main__":
    sys.exit(main())
