"""An option that was renamed: its earlier name works, and only its present one is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoalctl.cli import run
from shoalctl.enrollment.store import EnrollmentStore
from shoalctl.fleet.init import FleetPlan, make_fleet


@pytest.mark.parametrize("option", ["--fleet", "-f", "--dir", "-d"])
def test_a_fleets_directory_is_named_alike_everywhere(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "fleet")
    make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    for command in (
        ["enroll", "token", "create"],
        ["enroll", "ls"],
        ["enroll", "fingerprint"],
        ["pki", "issue", f"pi-{len(option)}"],
    ):
        assert run([*command, option, directory]) == 0, capsys.readouterr().err
    with EnrollmentStore(tmp_path / "fleet" / "enrollment.sqlite") as store:
        assert store.tokens()


@pytest.mark.parametrize(
    "command",
    [["enroll", "ls"], ["enroll", "token", "create"], ["pki", "issue"], ["flash", "bundle"]],
)
def test_help_shows_the_present_name_alone(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run([*command, "--help"])
    shown = capsys.readouterr().out
    assert "--fleet" in shown
    assert "--dir" not in shown
