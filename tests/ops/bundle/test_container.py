"""What a container of the agent runs: it enrols, watches and stops a program that stands in."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoalctl.flash.edge_files import edge_directory, edge_text

PROGRAM = edge_directory() / "container.py"
SHOAL = """#!{python}
import os, pathlib, signal, socket, sys, time
home = pathlib.Path({home!r})
with (home / "log").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + " " + os.environ.get("SHOAL_ENROLL_TOKEN", "") + "\\n")
if sys.argv[2] == "enroll":
    identity = pathlib.Path(sys.argv[sys.argv.index("--identity") + 1])
    identity.mkdir(parents=True)
    (identity / "cert.pem").touch()
    sys.exit(0)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
    said.connect(os.environ["NOTIFY_SOCKET"])
    said.send(b"READY=1")
{then}
"""


class Box:
    """A container's files, and a `shoal` that does what the test wants."""

    def __init__(self, root: Path) -> None:
        self.root, self.config = root, root / "etc"
        for name in ("etc", "run", "bin"):
            (root / name).mkdir()
        (self.config / "agent.toml").write_text(f'identity = "{root}/state/identity"\n')
        (self.config / "seed.json").write_text(
            '{"host": "fleet.example.org", "port": 8444, "ca_fingerprint": "ab"}'
        )
        (root / "token").write_text("one-time\n")

    def shoal(self, then: str) -> None:
        path = self.root / "bin/shoal"
        path.write_text(SHOAL.format(python=sys.executable, home=str(self.root), then=then))
        path.chmod(0o755)

    def start(self, *arguments: str, silent_s: float = 120.0) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "PATH": f"{self.root}/bin:/usr/bin:/bin",
                "SHOAL_RUN_DIR": str(self.root / "run"),
                "SHOAL_ENROLMENT_TOKEN_FILE": str(self.root / "token"),
                "SHOAL_WATCHDOG_S": str(silent_s),
            },
        )

    def run(self, *arguments: str, silent_s: float = 120.0) -> tuple[int, str]:
        with self.start(*arguments, silent_s=silent_s) as process:
            out, err = process.communicate(timeout=100)
            return process.returncode, out + err

    @property
    def act(self) -> tuple[str, str]:
        return "--config", str(self.config / "agent.toml")

    @property
    def calls(self) -> list[str]:
        return (self.root / "log").read_text().splitlines()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box(tmp_path)
    made.shoal("sys.exit(3)")
    return made


def test_it_enrols_once_and_then_acts_with_the_agents_exit_code(box: Box) -> None:
    assert box.run(*box.act)[0] == 3
    assert box.run(*box.act)[0] == 3
    identity = box.root / "state/identity"
    enrolled = "agent enroll --server fleet.example.org:8444 --ca-fingerprint ab"
    assert box.calls == [
        f"{enrolled} --identity {identity} one-time",
        f"agent run --config {box.config}/agent.toml ",
        f"agent run --config {box.config}/agent.toml ",
    ]


def test_it_is_healthy_once_the_agent_was_heard_of(box: Box) -> None:
    assert box.run("--health") == (1, "the agent was not heard of yet\n")
    box.run(*box.act)
    code, said = box.run("--health")
    assert (code, "was heard of" in said) == (0, True)
    assert box.run("--health", silent_s=0.0)[0] == 1


def test_an_agent_that_is_silent_is_ended(box: Box) -> None:
    box.shoal("signal.pause()")
    code, said = box.run(*box.act, silent_s=1.0)
    assert (code, "silent for 1 s" in said) == (70, True)


def test_it_stops_when_the_container_is_stopped(box: Box) -> None:
    box.shoal(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('acting', flush=True)\nsignal.pause()"
    )
    with box.start(*box.act) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acting\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize("text", ["", "identity", 'state_dir = "x"'])
def test_a_configuration_that_is_none_is_refused(text: str, box: Box) -> None:
    (box.config / "agent.toml").write_text(text)
    code, said = box.run(*box.act)
    assert (code, "agent.toml" in said) == (4, True)
    assert box.run()[0] == box.run("run", "x")[0] == 4


def test_the_compose_file_gives_the_agent_little() -> None:
    (service,) = yaml.safe_load(edge_text("compose.yaml"))["services"].values()
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["user"].split(":")[0] != "0"
    assert {"mem_limit", "cpus", "pids_limit"} <= set(service)


def test_the_image_is_pinned_unprivileged_and_watched() -> None:
    text = edge_text("Dockerfile")
    assert "ARG BASE=docker.io/library/python:3.11-slim-bookworm\n" in text
    last = text[text.rindex("FROM ") :]
    assert last.index("USER shoal") < last.index("ENTRYPOINT")
    assert "HEALTHCHECK" in last
    assert "torch" not in "".join(line for line in text.splitlines() if not line.startswith("#"))


def test_a_token_of_another_user_says_whom_to_give_it_to() -> None:
    class Closed:
        def is_file(self) -> bool:
            return True

        def read_text(self) -> str:
            raise PermissionError(13, "Permission denied")

        def __str__(self) -> str:
            return "/run/secrets/enrolment-token"

    names = runpy.run_path(str(PROGRAM))
    names["read_token"].__globals__["TOKEN"] = Closed()
    with pytest.raises(PermissionError, match=r"chown \d+ enrolment-token"):
        names["read_token"]()
