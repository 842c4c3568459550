"""What all tests of flashing over SSH share: a home of their own, and a host to flash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import PUBLIC
from ssh_hosts import SshHost, ssh_host


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("SHOAL_FLEET_DIR", raising=False)
    monkeypatch.chdir(tmp_path)  # the fleet whose key signs the bundles of tests is looked for here
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "policy.pub").write_text(PUBLIC.hex())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshHost]:
    with ssh_host(tmp_path / "host") as host:
        yield host
