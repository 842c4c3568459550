"""Killed before any step that reaches the disk, a journal loses nothing that it told anybody of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import journal_faults
import pytest

LEAST_STEPS = 10


@pytest.mark.parametrize("operation", journal_faults.OPERATIONS)
def test_a_kill_or_a_power_cut_at_any_step_leaves_what_was_acknowledged(
    operation: str, tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, journal_faults.__file__, str(tmp_path), operation],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    cases = [json.loads(line) for line in process.stdout.splitlines()]
    for power_cut in (False, True):
        assert sum(case["power_cut"] is power_cut for case in cases) > LEAST_STEPS
    assert [case for case in cases if case["flaws"]] == []
