"""`kill -9`, or the plug pulled, at every step of what changes the slots: an agent acts afterwards.

The cases are not picked: each operation is run once and counted, and is then killed before each of
its steps, in a process of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import slot_faults
from slot_faults import OPERATIONS, count

from edge_agent.slots.state import Content

PROGRAM = [sys.executable, "-I", "-S", str(Path(slot_faults.__file__))]


def table(directory: Path, operation: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*PROGRAM, str(directory), operation], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_table_is_made_from_the_steps_and_covers_every_operation(tmp_path: Path) -> None:
    steps = {name: count(name, tmp_path / name) for name in OPERATIONS}
    assert sum(map(len, steps.values())) >= 200
    assert all(any("slots.json" in step for step in found) for found in steps.values())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_step_is_cut_off_a_working_agent_is_left(name: str, tmp_path: Path) -> None:
    operation, rows = OPERATIONS[name], table(tmp_path, name)
    assert rows
    for row in rows:
        assert row["status"] == -signal.SIGKILL, row
        if operation.after:  # before the first installation is through there is no agent
            acts = [act.partition(" ")[2] for act in row["acts"]]
            assert set(acts) <= {*operation.after, operation.finally_}, row
            assert row["content"] in (Content.INSTALLED, Content.COMMITTED), row
        assert row["again"] == 0, row
        slot, _, version = row["then"].partition(" ")
        assert row["current"] == slot, row
        assert row["link"] == f"slots/{slot}", row
        if name != "last_death" or not row["power_cut"]:  # a new boot counts deaths from nought
            assert version == operation.finally_, row
