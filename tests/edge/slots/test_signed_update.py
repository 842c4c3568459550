"""What root installs for the agent is signed by the fleet: checked by a slot's own Python."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import CONTENTS, KEY, PUBLIC, manifest_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from slot_device import SlotDevice, make_device, on_trial

from edge_agent.slots import account, transitions
from edge_agent.slots.state import Happening, Name
from edge_agent.slots.update import Updater
from shoal.bundle import sign

FOREIGN = Ed25519PrivateKey.from_private_bytes(bytes(32))


def offered(device: SlotDevice, key: Ed25519PrivateKey) -> Path:
    """An unpacked bundle under `updates/`, and the request for it."""
    manifest = manifest_of(
        CONTENTS,
        arch=platform.machine(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    directory = device.layout.updates / "bundle"
    for name, content in CONTENTS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / "manifest.json").write_bytes(manifest.encode())
    (directory / "manifest.sig").write_bytes(sign(manifest, key))
    request = {"schema": 1, "bundle": "bundle", "digest": manifest.digest, "reason": "wave 1"}
    device.layout.request.write_text(json.dumps(request))
    return directory


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlotDevice:
    """One with a committed slot; its pip is made up, and the check of signatures is not."""
    found = on_trial(make_device(tmp_path / "device"))
    found.layout.updates.mkdir()
    found.layout.policy_key.write_text(PUBLIC.hex())
    found.store.change(lambda state, now: transitions.roll_back(state, "enough", now))
    python = found.layout.python(Name.A)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    real = account.run

    def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        if "-c" in command:
            return real(command, **more)  # type: ignore[arg-type]
        if "--without-pip" in command:
            found.fill(Name.B, "3.0")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(account, "run", run)
    return found


def answer(device: SlotDevice) -> tuple[str, str]:
    Updater(device.layout, device.store).apply()
    table = json.loads(device.layout.result.read_bytes())
    return table["state"], table["reason"]


def test_what_the_fleet_signed_is_installed_and_on_trial(device: SlotDevice) -> None:
    offered(device, KEY)
    assert answer(device) == ("trial", "slot b is on trial: wave 1")
    assert device.store.read().current is Name.B


def test_what_another_key_signed_is_refused_and_noted(device: SlotDevice) -> None:
    offered(device, FOREIGN)
    state, reason = answer(device)
    assert state == "refused"
    assert "not signed by this fleet" in reason
    newest = device.store.read().history[-1]
    assert newest.happening is Happening.REFUSED
    assert "not signed" in newest.reason


def test_a_file_that_was_changed_after_signing_is_refused(device: SlotDevice) -> None:
    wheel = offered(device, KEY) / "wheels" / "shoal-0.1.0-py3-none-any.whl"
    wheel.write_bytes(bytes(len(wheel.read_bytes())))
    state, reason = answer(device)
    assert state == "refused"
    assert "not what the bundle's manifest says" in reason
    assert device.store.read().current is Name.A


def test_without_the_fleets_key_nothing_is_installed(device: SlotDevice) -> None:
    device.layout.policy_key.unlink()
    offered(device, KEY)
    assert answer(device)[0] == "refused"
