"""`kill -9`, or the plug pulled, at every step of the policy store: a policy acts afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import policy_faults
import pytest

TESTS = Path(policy_faults.__file__).parent


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", policy_faults.OPERATIONS)
def test_whatever_step_is_cut_off_a_policy_acts(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "policy_faults.py"), str(tmp_path), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows
    for row in rows:
        assert row["acted"] in policy_faults.OPERATIONS[name].after, row
        if "revoked" in row and row["acted"] == 2:  # by a newer delegate than the revoked one
            assert row["revoked"] == 2, row
        assert row["then"] == 4, row
