"""What root does for the agent: commits what acted, installs what it fetched and was verified."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots import account, codec, configuration, transitions
from edge_agent.slots.boot import LauncherBroken, put_boot
from edge_agent.slots.bundle import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    MAX_SIGNATURE_BYTES,
    SIGNATURE_NAME,
    BundleDamaged,
    read_manifest,
)
from edge_agent.slots.files import copy_plain, read_plain, remove, write_durably
from edge_agent.slots.install import Installer, InstallFailed
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Content, Moment, Name, Refused, State
from edge_agent.slots.store import Store

MAX_REQUEST_BYTES: Final = 4096
VERIFY_TIMEOUT_S: Final = 300.0
_DIRECTORY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_VERIFY: Final = """
import sys
from pathlib import Path
from shoal.bundle import check_files, read_manifest
key = bytes.fromhex(Path(sys.argv[2]).read_text("ascii").strip())
check_files(Path(sys.argv[1]), read_manifest(Path(sys.argv[1]), key))
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What the agent wants to be installed.

    Attributes:
        bundle: Name of a directory under `updates/`.
        digest: Of its manifest, hexadecimal.
        reason: Why, for the history.
        rollback: Leave the bundle of that digest for the slot before, instead.
    """

    bundle: str
    digest: str
    reason: str
    rollback: bool = False

    @classmethod
    def read(cls, path: Path) -> Request:
        """Reads one; its writer isn't trusted.

        Raises:
            Refused: It isn't one.
        """
        try:
            table = codec.read_table(read_plain(path, MAX_REQUEST_BYTES), MAX_REQUEST_BYTES)
            bundle, digest, reason = (
                codec.text(table, key) for key in ("bundle", "digest", "reason")
            )
            request = cls(bundle, digest, reason, rollback=table.get("rollback") is True)
        except (OSError, codec.Malformed) as error:
            raise Refused(f"the request can't be read: {error}") from error
        if not _DIRECTORY.fullmatch(request.bundle):
            raise Refused(f"the request names {request.bundle[:80]!r}: not a directory's name")
        return request


class Updater:
    """Does what waits to be done.

    Updater(layout, Store(layout)).apply()
    """

    def __init__(
        self, layout: Layout, store: Store, *, tell: Callable[[str], object] = lambda _line: None
    ) -> None:
        """Does nothing yet.

        Args:
            layout: Where.
            store: The state.
            tell: Hears what is being done.
        """
        self._layout = layout
        self._store = store
        self._tell = tell

    def apply(self) -> bool:
        """Commits a slot that acted, and installs what is asked for; whether a slot was switched.

        Raises:
            OSError: The disk is full or broken; it is to be called again.
        """
        self.commit()
        return self.update()

    def commit(self) -> State:
        """Commits the slot on trial if its agent says that it acted.

        Raises:
            OSError: It can't be written.
        """
        path = self._layout.acted
        if not path.exists():
            return self._store.read()
        try:
            table = codec.read_table(read_plain(path, MAX_REQUEST_BYTES), MAX_REQUEST_BYTES)
            trial = codec.number(table, "trial")
            acted = ", ".join(f"{codec.number(table, key)} {key}" for key in ("episodes", "chunks"))
            reason = f"it acted {acted} with policy {codec.number(table, 'policy_version')}"
        except (OSError, codec.Malformed) as error:
            self._tell(f"{path}: {error}")
            remove(path)
            return self._store.read()
        state = self._store.change(lambda state, now: transitions.commit(state, trial, reason, now))
        if state.trial is None and state.current is not None:
            self._tell(f"slot {state.current} is committed: {reason}")
            self._renew_launcher(state.current)
        remove(path)
        return state

    def update(self) -> bool:
        """Installs what is asked for and switches to it; whether it did.

        Raises:
            OSError: The disk is broken.
        """
        if not self._layout.request.exists():
            return False
        digest, switched = "", False
        try:
            request = Request.read(self._layout.request)
            digest = request.digest
            switched = self._leave(request) if request.rollback else self._install(request)
            current = self._store.read().current
            answer = ("trial", f"slot {current} is on trial: {request.reason}")
            if request.rollback:
                answer = ("left", f"slot {current} runs: {request.reason}")
        except (BundleDamaged, Refused) as error:
            answer = ("refused", str(error))
        except (InstallFailed, OSError) as error:
            answer = ("failed", str(error))
        state, reason = answer
        self._tell(f"update {state}: {reason}")
        if state in ("refused", "failed"):
            self._store.change(lambda state, now: transitions.refuse(state, reason, now))
        remove(self._layout.incoming)
        table = {"schema": codec.SCHEMA, "digest": digest, "state": state, "reason": reason}
        write_durably(self._layout.result, json.dumps(table).encode())
        remove(self._layout.request)
        return switched

    def _leave(self, request: Request) -> bool:
        """Goes back from the bundle that runs; one that does not run is left already."""

        def transition(state: State, now: Moment) -> State:
            release = None if state.current is None else state.slot(state.current).release
            if release is None or release.digest != request.digest:
                return state
            return transitions.roll_back(state, request.reason, now)

        before = self._store.read().current
        return self._store.change(transition).current is not before

    def _install(self, request: Request) -> bool:
        state = self._store.read()
        for name in Name:
            slot = state.slot(name)
            if slot.release is None or slot.release.digest != request.digest:
                continue
            if name is state.current:
                return False
            if slot.content is Content.CONDEMNED:
                raise Refused(
                    f"this bundle was tried here and left: {slot.reason}; an operator may install "
                    "it again, over SSH"
                )
        bundle = self._fetch(request)
        self._verify(bundle, state)
        if state.trial is not None and state.fallback is not None:
            reason = f"superseded by: {request.reason}"
            self._store.change(lambda state, now: transitions.roll_back(state, reason, now))
        Installer(self._layout, self._store, tell=self._tell).install(bundle)
        configuration.lay(self._layout, bundle / "config", tell=self._tell)
        self._store.change(lambda state, now: transitions.switch(state, request.reason, now))
        return True

    def _fetch(self, request: Request) -> Path:
        """Copies the bundle to where only root can change it, as far as its manifest says."""
        source, target = self._layout.updates / request.bundle, self._layout.incoming
        remove(target)
        target.mkdir(mode=0o700)
        limits = {MANIFEST_NAME: MAX_MANIFEST_BYTES, SIGNATURE_NAME: MAX_SIGNATURE_BYTES}
        for name, limit in limits.items():
            try:
                copy_plain(source / name, target / name, limit)
            except OSError as error:
                raise BundleDamaged(f"the bundle has no readable {name}: {error}") from error
        manifest = read_manifest(target)
        if manifest.release.digest != request.digest:
            raise BundleDamaged("the bundle's manifest isn't the one that was asked for")
        for file in manifest.files:
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
            try:
                copy_plain(source / file.path, target / file.path, file.size)
            except FileNotFoundError as error:
                raise BundleDamaged(f"the bundle is incomplete: no {file.path}") from error
        return target

    def _verify(self, bundle: Path, state: State) -> None:
        """Checks the fleet's signature, by the Python of a slot that acted.

        Raises:
            Refused: It isn't the fleet's, or there is nothing to check it with.
        """
        names = sorted(
            (name for name in Name if not self._layout.broken(name)),
            key=lambda name: state.slot(name).content is not Content.COMMITTED,
        )
        if not names or not self._layout.policy_key.exists():
            raise Refused(f"there is no {self._layout.policy_key} to check the bundle with")
        done = account.run(
            [
                *(str(self._layout.python(names[0])), "-I", "-c", _VERIFY),
                *(str(bundle), str(self._layout.policy_key)),
            ],
            timeout_s=VERIFY_TIMEOUT_S,
            cwd=self._layout.prefix,
        )
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise Refused(f"the bundle was not verified: {said}")

    def _renew_launcher(self, name: Name) -> None:
        source = self._layout.slot(name) / "boot"
        if not source.is_dir():
            return
        with contextlib.suppress(LauncherBroken):  # the one that runs this goes on
            if put_boot(self._layout, source):
                self._tell("the launcher was replaced")
