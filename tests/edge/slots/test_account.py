"""What a fresh slot is asked runs as the agent's user, never as root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.slots import account

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_command_runs_as_the_owner_of_the_state_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    owner = account.owner_of(tmp_path)
    assert owner is not None
    done = account.run(["id", "-u"], timeout_s=60, account=owner, cwd=Path("/"))
    assert done.stdout.strip() == str(NOBODY)


def test_a_directory_of_ones_own_changes_nobody(tmp_path: Path) -> None:
    assert account.owner_of(tmp_path) is None
    assert account.owner_of(tmp_path / "missing") is None
    done = account.run(["id", "-u"], timeout_s=60)
    assert done.stdout.strip() == str(os.geteuid())


def test_what_is_run_sees_no_variable_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ENROL_TOKEN", "secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://elsewhere.example")
    done = account.run(["env"], timeout_s=60)
    assert "secret" not in done.stdout
    assert "elsewhere" not in done.stdout
