from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.generation_mark import GenerationMark


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, (1 << 62) - 1), max_size=6))
def test_it_only_rises_and_is_what_a_restart_finds(tmp_path: Path, steps: list[int]) -> None:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    directory.mkdir()
    mark = GenerationMark(directory)
    for step in steps:
        mark.rise_to(step)
    assert mark.generation == GenerationMark(directory).generation == max(steps, default=0)
    assert len(list(directory.iterdir())) == (1 if mark.generation else 0)


def test_what_a_power_cut_left_between_two_counts_by_the_higher(tmp_path: Path) -> None:
    for name in (f"{2:020d}", f"{3:020d}", "half"):
        (tmp_path / f"{name}.generation").touch()
    (tmp_path / f"{9:020d}.generation.tmp").touch()
    mark = GenerationMark(tmp_path)
    assert mark.generation == 3
    mark.rise_to(4)
    assert sorted(path.stem for path in tmp_path.glob("*.generation")) == [f"{4:020d}", "half"]
