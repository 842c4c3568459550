"""A port that is taken is one line and an exit code, before anything is logged."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from brokers import FLEET, HOST, identity

from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki


def test_a_used_port_is_said_before_anything_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = identity(FleetPki.create(tmp_path / "pki", FLEET), "broker")
    with socket.create_server((HOST, 0)) as holder:
        port = holder.getsockname()[1]
        arguments = ["--fleet", FLEET, "--identity", str(keys), "--port", str(port)]
        assert run(["broker", "run", *arguments, "--state-dir", str(tmp_path / "state")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"shoal: cannot listen on {HOST}:{port}: the port is in use")
