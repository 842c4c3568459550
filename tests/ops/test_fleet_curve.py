"""`shoal fleet curve`: the chart of what a learner's journal holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner_state import short_run
from strategies import cartpole_spec, make_chunk

from shoalctl.cli import run
from shoalctl.fleet.curve import KEPT, points_of


def test_the_curve_of_a_journal_is_drawn_with_both_levels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = short_run(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    capsys.readouterr()
    assert run(["fleet", "curve", "--state", str(made.state.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 22
    assert "CartPole-v1" in lines[0]
    assert any("threshold 475" in line for line in lines)
    assert any("published 500" in line for line in lines)
    assert all(len(line) <= 80 for line in lines[1:])
    assert lines[-1].endswith("steps")


def test_without_a_journal_it_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "curve", "--state", str(tmp_path)]) != 0
    assert "no journal here" in capsys.readouterr().err


def test_steps_count_from_what_the_journal_has_no_more() -> None:
    chunk = make_chunk(cartpole_spec())
    points = points_of([chunk] * 3, before=1000)
    assert points[0].steps == 1000 + chunk.transitions
    assert points[-1].steps == 1000 + 3 * chunk.transitions
    mean = sum(e.total_return for e in chunk.episodes) / len(chunk.episodes)
    assert points[-1].value == pytest.approx(mean)


def test_a_long_journal_gives_a_bounded_curve_up_to_its_last_chunk() -> None:
    chunk = make_chunk(cartpole_spec())
    points = points_of([chunk] * (2 * KEPT + 7))
    assert len(points) <= KEPT + 2
    assert points[-1].steps == (2 * KEPT + 7) * chunk.transitions
    assert [p.steps for p in points] == sorted(p.steps for p in points)
