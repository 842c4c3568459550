"""A bundle goes into the spare slot, by the system's Python and pip, beside what runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from child_process import Process
from slot_bundles import bundle, digest, finish
from slot_device import LONG_S

from edge_agent.slots import account, transitions
from edge_agent.slots.boot import boot_files
from edge_agent.slots.bundle import BundleDamaged, check_files, read_manifest
from edge_agent.slots.layout import Layout
from edge_agent.slots.setup import Options, Setup
from edge_agent.slots.state import Content, Happening, Name
from edge_agent.slots.store import Store
from edge_agent.slots.update import Updater


@pytest.mark.timeout(600)
def test_a_real_offline_installation_acts_is_updated_and_leaves_a_version_that_dies(
    tmp_path: Path,
) -> None:
    prefix = tmp_path / "prefix"
    made = {"state_dir": prefix / "state", "boot": boot_files()}
    first = bundle(tmp_path / "first", "1.0", **made)  # type: ignore[arg-type]
    second = bundle(tmp_path / "second", "2.0", "dies", **made)  # type: ignore[arg-type]

    def slots(*words: str, command: tuple[str, ...] = ()) -> dict[str, object]:
        done = subprocess.run(
            [*(command or (str(prefix / "bin" / "shoal-slots"),)), *words, "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 0, done.stderr
        (item,) = json.loads(done.stdout)["items"]
        return dict(item)

    system = (sys.executable, "-I", "-S", str(first / "boot"))
    slots("setup", str(first), "--prefix", str(prefix), command=system)
    before = slots("setup", str(first), "--prefix", str(prefix), command=system)
    assert before["entries"] == 2  # again is nothing new
    launcher = Process([str(prefix / "bin" / "shoal-slots"), "run"])
    try:
        launcher.wait_for_line("slot a is committed", timeout_s=LONG_S)
        slots("install", str(second))
        assert not launcher.ended
        slots("switch", "--reason", "by hand")
        launcher.wait_for_line("slot b: started", timeout_s=LONG_S)
        start = len(launcher.lines)
        launcher.wait_for_line("slot a: started", start=start, timeout_s=LONG_S)
    finally:
        assert launcher.stop() == 0
    after = slots("status")
    assert (after["current"], after["trial"]) == ("a", None)
    assert not list(prefix.glob(".pip-*"))


@dataclass
class Device:
    """A set-up device whose pip is made up."""

    directory: Path
    answers: dict[str, int]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.directory / "prefix")

    @property
    def store(self) -> Store:
        return Store(self.layout)

    def bundle(self, version: str) -> Path:
        directory = self.layout.updates / version
        bundle(directory, version, state_dir=self.layout.state_dir, boot=boot_files())
        (directory / "manifest.sig").write_bytes(bytes(64))
        return directory

    def ask(self, version: str, **changed: object) -> None:
        request = {
            "schema": 1,
            "bundle": version,
            "digest": digest(self.layout.updates / version),
            "reason": "rollout 7, wave 2",
        }
        self.layout.request.write_text(json.dumps(request | changed))

    def result(self) -> tuple[str, str]:
        table = json.loads(self.layout.result.read_bytes())
        assert not self.layout.request.exists()
        return table["state"], table["reason"]

    def commit(self) -> None:
        trial = self.store.read().trial
        assert trial is not None
        self.store.change(lambda state, now: transitions.commit(state, trial.number, "acted", now))

    def apply(self) -> None:
        Updater(self.layout, self.store).apply()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(tmp_path, {})

    def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        if "--without-pip" in command:
            for name in ("shoal", "python"):
                path = Path(command[-1]) / "bin" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("a program")
        code = next((code for word, code in found.answers.items() if word in command), 0)
        return subprocess.CompletedProcess(command, code, "", "no, for a reason")

    monkeypatch.setattr(account, "run", run)
    found.layout.updates.mkdir(parents=True)
    Setup(found.layout, found.store, Options()).run(found.bundle("1.0"))
    found.commit()
    return found


def test_an_update_is_installed_switched_to_and_answered(device: Device) -> None:
    device.bundle("2.0")
    device.ask("2.0")
    device.apply()
    assert device.result()[0] == "trial"
    state = device.store.read()
    assert state.current is Name.B
    assert state.trial is not None
    assert state.trial.reason == "rollout 7, wave 2"
    assert not device.layout.incoming.exists()
    device.apply()
    assert device.store.read() == state


@pytest.mark.parametrize(
    ("answers", "state"),
    [({"-c": 1}, "refused"), ({"install": 1}, "failed"), ({"check": 1}, "failed")],
)
def test_what_is_not_signed_not_installable_or_not_healthy_leaves_the_running_slot(
    device: Device, answers: dict[str, int], state: str
) -> None:
    device.bundle("2.0")
    device.ask("2.0")
    device.answers.update(answers)
    device.apply()
    assert device.result()[0] == state
    assert device.store.read().current is Name.A
    assert device.store.read().trial is None
    assert "no, for a reason" in device.store.read().history[-1].reason


@pytest.mark.parametrize(
    "changed",
    [
        {"bundle": "../../etc"},
        {"bundle": "/etc"},
        {"digest": "0" * 64},
        {"schema": 2},
        {"reason": 7},
    ],
)
def test_a_request_that_is_not_one_is_refused_and_told(
    device: Device, changed: dict[str, object]
) -> None:
    device.bundle("2.0")
    device.ask("2.0", **changed)
    device.apply()
    assert device.result()[0] == "refused"
    assert device.store.read().history[-1].happening is Happening.REFUSED


def test_a_link_in_place_of_a_file_is_never_followed(device: Device, tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root's own")
    found = device.bundle("2.0")
    device.ask("2.0")
    wheel = next((found / "wheels").iterdir())
    wheel.unlink()
    wheel.symlink_to(secret)
    device.apply()
    assert device.result()[0] in ("refused", "failed")
    assert device.store.read().current is Name.A


def test_a_version_that_was_left_is_not_installed_again_by_a_rollout(device: Device) -> None:
    device.bundle("2.0")
    device.ask("2.0")
    device.apply()
    device.store.change(lambda state, now: transitions.roll_back(state, "it died", now))
    device.ask("2.0")
    device.apply()
    state, reason = device.result()
    assert state == "refused"
    assert "it died" in reason


def test_a_trial_in_progress_never_blocks_the_next_update(device: Device) -> None:
    for version in ("2.0", "3.0"):
        device.bundle(version)
        device.ask(version)
        device.apply()
        assert device.result()[0] == "trial"
    state = device.store.read()
    assert state.fallback is Name.A
    release = state.slot(Name.B).release
    assert release is not None
    assert release.bundle_version == "3.0"
    assert any("superseded" in entry.reason for entry in state.history)


def test_a_changed_configuration_is_kept_unless_it_is_to_be_replaced(device: Device) -> None:
    config = device.layout.config
    config.write_text("# by hand\n")
    found = device.layout.updates / "1.0"
    Setup(device.layout, device.store, Options()).run(found)
    assert config.read_text() == "# by hand\n"
    assert config.with_name("agent.toml.new").exists()
    Setup(device.layout, device.store, Options(replace_config=True)).run(found)
    assert "state_dir" in config.read_text()
    assert config.with_name("agent.toml.before").read_text() == "# by hand\n"


def test_a_bundle_that_was_tampered_with_changes_nothing(device: Device) -> None:
    found = device.bundle("2.0")
    before = device.store.read()
    wheel = next((found / "wheels").iterdir())
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    with pytest.raises(BundleDamaged, match="isn't what the manifest says"):
        check_files(found, read_manifest(found))
    with pytest.raises(BundleDamaged):
        Setup(device.layout, device.store, Options()).run(found)
    assert device.store.read() == before


def test_a_path_out_of_the_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for path in ("../x", "/etc/passwd", "a//b", "a/../b", ".hidden", "a" * 3 + "/b" * 9):
        table = {"schema": 1, "version": "1", "shoal_version": "1"}
        files = [{"path": path, "size": 1, "sha256": "0" * 64}]
        (tmp_path / "b" / "manifest.json").write_text(json.dumps({**table, "files": files}))
        with pytest.raises(BundleDamaged, match="not a path"):
            read_manifest(tmp_path / "b")


def test_a_bundle_for_another_machine_or_python_is_refused(device: Device) -> None:
    for key, value in (("arch", "riscv64"), ("python", "3.9")):
        found = device.layout.updates / f"for-{value}"
        shutil.copytree(device.layout.updates / "1.0", found)
        finish(found, "9.0")
        table = json.loads((found / "manifest.json").read_text())
        (found / "manifest.json").write_text(json.dumps({**table, key: value}))
        with pytest.raises(BundleDamaged, match=f"--{key}"):
            Setup(device.layout, device.store, Options()).run(found)
    assert device.store.read().slot(Name.B).content is Content.EMPTY
