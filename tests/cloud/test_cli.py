from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_learner.state_dir import StateDir
from shoalctl.pki.pki import FleetPki, Role


def learner(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoalctl.cli", "learner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def write_config(directory: Path, identity: Path, extra: str = "") -> Path:
    path = directory / "learner.toml"
    path.write_text(f'fleet = "demo"\nidentity = "{identity}"\nstate_dir = "state"\n{extra}')
    return path


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    return FleetPki.create(tmp_path / "pki", "demo").issue("learner", Role.LEARNER)


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """What was said to a person: the last line, and no traceback."""
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    result = learner("run", "--config", str(tmp_path / "none.toml"))
    assert (result.returncode, "none.toml" in one_line(result)) == (4, True)


def test_an_unknown_key_is_a_configuration_error_that_names_the_nearest(
    tmp_path: Path, identity: Path
) -> None:
    path = write_config(tmp_path, identity, "sead = 3\n")
    result = learner("run", "--config", str(path))
    assert (result.returncode, "did you mean seed" in one_line(result)) == (4, True)


def test_a_missing_certificate_is_an_identity_error(tmp_path: Path) -> None:
    path = write_config(tmp_path, tmp_path / "nowhere")
    result = learner("run", "--config", str(path))
    assert (result.returncode, "no such directory" in one_line(result)) == (4, True)


def test_a_used_port_is_a_connection_error_and_leaves_nothing_to_resume(
    tmp_path: Path, identity: Path, used_port: int
) -> None:
    path = write_config(tmp_path, identity, f"[server]\nport = {used_port}\n")
    result = learner("run", "--config", str(path))
    assert (result.returncode, "cannot listen on" in one_line(result)) == (2, True)
    StateDir.open(tmp_path / "state", resume=False)  # a second `run` would find nothing there


def test_a_file_to_start_from_that_is_missing_is_refused_before_anything_starts(
    tmp_path: Path, identity: Path
) -> None:
    path = write_config(tmp_path, identity, 'init = "of the file.onnx"\n')
    result = learner("run", "--config", str(path), "--init", "gone.onnx")
    assert (result.returncode, "gone.onnx: No such file" in one_line(result)) == (4, True)
    assert not (tmp_path / "state" / "journal.db").exists()


def test_a_number_of_shards_that_makes_no_sense_is_refused(tmp_path: Path, identity: Path) -> None:
    path = write_config(tmp_path, identity)
    result = learner("run", "--config", str(path), "--shards", "0")
    assert (result.returncode, "gradients.shards = 0" in one_line(result)) == (4, True)


@pytest.mark.parametrize("command", ["run", "resume"])
def test_shards_are_refused_where_no_gradients_come(
    tmp_path: Path, identity: Path, command: str
) -> None:
    path = write_config(tmp_path, identity)
    result = learner(command, "--config", str(path), "--shards", "2")
    assert result.returncode == 4
    assert "training.mode is 'async'" in one_line(result)
    assert 'set mode = "gradients"' in one_line(result)
    assert not (tmp_path / "state").exists()
