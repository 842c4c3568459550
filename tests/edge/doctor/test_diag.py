"""What is collected for help holds no secret: canaries lie everywhere, and none is found."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_agent.doctor.collection import MAX_ENTRY_BYTES, MAX_LINE_CHARACTERS, MAX_LOG_LINES
from edge_agent.slots import codec
from edge_agent.slots.state import Content, Name, Release, Slot, State
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki, Role

ENVIRONMENT = """
import os
import gymnasium
class Robot(gymnasium.Env):
    def __init__(self, login, **more):
        raise RuntimeError(f"cannot log in with {login} or {os.environ['ROBOT_LOGIN']}, {more}")
"""
JOURNALCTL = """#!/bin/sh
echo "ok   agent started"
echo "fault login {kwarg} refused"
echo "fault env {variable} used"
echo "fault WIFI_PASSPHRASE={wifi} token={token} key={key}"
seq 1 5000
head -c 9000 /dev/zero | tr '\\0' x; echo
"""


@dataclass(frozen=True)
class Device:
    """A device with a canary in every place that a secret may be in."""

    arguments: list[str]
    out: Path
    canaries: dict[str, str]

    def collect(self, *more: str) -> int:
        return run([*self.arguments, *more])

    def texts(self) -> dict[str, str]:
        with tarfile.open(self.out) as tar:
            found = {}
            for member in tar.getmembers():
                file = tar.extractfile(member)
                assert file is not None
                found[member.name.partition("/")[2]] = file.read().decode()
        return found


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    identity, state = pki.issue("pi-1", Role.DEVICE), tmp_path / "state"
    names = ("kwarg", "nested", "variable", "wifi", "token", "policy", "spool", "extra", "environ")
    canaries = {name: f"canary-of-{name}-8b1f" for name in names}
    canaries |= {"long": "canary-that-is-cut-" + "z9" * 100, "quoted": 'canary\'s \\ "quoted"'}
    canaries |= {"pin": "481516"}
    key_lines = (identity / "key.pem").read_text().splitlines()
    canaries |= {f"key line {n}": line for n, line in enumerate(key_lines) if "---" not in line}

    (tmp_path / "robots.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROBOT_LOGIN", canaries["variable"])
    monkeypatch.setenv("SOMETHING_INNOCENT", canaries["environ"])
    (tmp_path / "bin").mkdir()
    journal = tmp_path / "bin" / "journalctl"
    journal.write_text(JOURNALCTL.format(key=key_lines[1], **canaries))
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    trust = state / "policies" / "demo-0123"
    trust.mkdir(parents=True)
    (trust / f"{7:020d}-{'ab' * 32}.bundle").write_text(canaries["policy"])
    (state / "enrolment-token").write_text(f"4873c1a0.{canaries['token']}")
    (state / "spool.sqlite").write_text(canaries["spool"])
    (state / "wifi.conf").write_text(canaries["wifi"])
    (identity / "extra.txt").write_text(canaries["extra"])
    release = Release("0" * 64, "0.2.0-1", "0.2.0")
    slots = State(current=Name.A, a=Slot(Content.COMMITTED, release, "it acted"))
    table = codec.as_dict(slots) | {"unknown": canaries["extra"]}
    (tmp_path / "slots.json").write_text(json.dumps(table))

    config = tmp_path / "agent.toml"
    config.write_text(
        f'fleet = "demo"\nidentity = "{identity}"\nstate_dir = "{state}"\n'
        f'[env]\nid = "robots:Robot"\n[env.kwargs]\nlogin = "{canaries["kwarg"]}"\n'
        f'deep = {{ a = [1, "{canaries["nested"]}"] }}\npin = {canaries["pin"]}\n'
        f"long = {json.dumps(canaries['long'])}\nquoted = {json.dumps(canaries['quoted'])}\n"
    )
    out = tmp_path / "out" / "pi-1.tar.gz"
    out.parent.mkdir()
    arguments = ["agent", "diag", "-c", str(config), "--out", str(out), "--offline"]
    return Device([*arguments, "--prefix", str(tmp_path)], out, canaries)


def test_no_secret_is_in_any_byte_of_the_archive(device: Device) -> None:
    assert device.collect() == 0
    everything = gzip.decompress(device.out.read_bytes())
    found = [name for name, canary in device.canaries.items() if canary.encode() in everything]
    assert found == []
    parts = re.findall(rb".{30}canary.{30}", everything)
    assert parts == []


def test_what_helps_is_there(device: Device) -> None:
    assert device.collect() == 0
    texts = device.texts()
    assert set(texts) == {
        *("config.json", "doctor.json", "log.txt", "policies.json"),
        *("slots.json", "spool.json", "versions.json"),
    }
    doctor = {item["name"]: item for item in json.loads(texts["doctor.json"])["items"]}
    assert doctor["identity"]["level"] == "ok"
    assert "cannot log in with [removed]" in doctor["environment"]["detail"]
    config = json.loads(texts["config.json"])
    assert (config["fleet"], config["env.id"]) == ("demo", "robots:Robot")
    assert config["actor.chunk_steps"] == 64
    assert config["env.kwargs.login"] == "[not shown: str]"
    (policy,) = json.loads(texts["policies.json"])
    assert (policy["version"], policy["manifest_digest"]) == (7, "ab" * 32)
    assert json.loads(texts["slots.json"])["current"] == "a"
    assert json.loads(texts["spool.json"])["damaged"]
    assert json.loads(texts["versions.json"])["numpy"]


def test_its_owner_alone_may_read_it_and_it_is_bounded(device: Device) -> None:
    assert device.collect() == 0
    assert stat.S_IMODE(device.out.stat().st_mode) == 0o600
    with tarfile.open(device.out) as tar:
        members = tar.getmembers()
    assert {(member.mode, member.uid, member.uname) for member in members} == {(0o600, 0, "")}
    assert all(member.isfile() and member.size <= MAX_ENTRY_BYTES for member in members)
    lines = device.texts()["log.txt"].splitlines()
    assert len(lines) == MAX_LOG_LINES
    assert max(map(len, lines)) == MAX_LINE_CHARACTERS


def test_nothing_is_overwritten_and_the_name_says_what_it_is(
    device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    device.out.write_text("mine")
    assert device.collect() == 4
    assert "nothing is overwritten" in capsys.readouterr().err
    assert device.out.read_text() == "mine"
    assert device.collect("--out", str(device.out.with_suffix(".zip"))) == 4


def test_a_program_gets_one_envelope(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert device.collect("-o", "json") == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.AgentDiag"
    assert envelope["items"][0]["entries"]["doctor.json"] > 100


def test_a_machine_without_a_journal_has_no_log(
    device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert device.collect() == 0
    assert "log.txt" not in device.texts()
    assert "no log" in capsys.readouterr().err
