"""What all tests of flashing over SSH share: a home of their own, and a host to flash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_hosts import SshHost, ssh_host


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshHost]:
    with ssh_host(tmp_path / "host") as host:
        yield host
