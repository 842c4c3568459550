"""The learning curve of a terminal: never too large, true to its values, whatever they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoalctl.views.chart import FEWEST_COLUMNS, FEWEST_ROWS, Level, Point, draw_chart, thin

ANY = st.one_of(st.floats(-1e12, 1e12), st.sampled_from([math.nan, math.inf, -math.inf]))
CURVES = st.lists(ANY, max_size=60).map(lambda vs: [Point(50.0 * i, v) for i, v in enumerate(vs)])
LEVELS = st.lists(st.builds(Level, ANY, st.sampled_from(["threshold", "published"]), st.booleans()))


def ramp(count: int, top: float = 500.0) -> list[Point]:
    return [Point(1000.0 * i, top * i / max(1, count - 1)) for i in range(count)]


def heights(lines: list[str], mark: str = "*") -> list[int]:
    """In each column that the curve has, its highest line, counted from below."""
    plot = [line.partition("|")[2] for line in lines if "|" in line]
    wide = max(map(len, plot))
    rows = [line.ljust(wide) for line in reversed(plot)]
    columns = [[i for i, row in enumerate(rows) if row[c] == mark] for c in range(wide)]
    return [max(found) for found in columns if found]


@given(CURVES, LEVELS, st.integers(0, 130), st.integers(0, 40), st.booleans())
def test_it_is_never_wider_or_taller_than_asked(
    points: list[Point],
    levels: list[Level],
    width: int,
    height: int,
    braille: bool,  # noqa: FBT001 - hypothesis gives it by place
) -> None:
    lines = draw_chart(points, levels, width=width, height=height, braille=braille)
    assert len(lines) in (0, height)
    assert all(len(line) <= width for line in lines)
    assert braille or all(line.isascii() for line in lines)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(5, 20))
def test_values_that_rise_give_a_curve_that_never_falls(values: list[float], height: int) -> None:
    points = [Point(10.0 * i, value) for i, value in enumerate(sorted(values))]
    drawn = heights(draw_chart(points, width=70, height=height, braille=False))
    assert drawn
    assert drawn == sorted(drawn)


@given(CURVES)
def test_thinning_keeps_both_ends(points: list[Point]) -> None:
    thinned = thin(points)
    assert thinned[:1] == points[:1]
    assert thinned[-1:] == points[-1:]
    assert len(thinned) <= len(points) // 2 + 1


def test_levels_are_drawn_across_and_named_with_their_values() -> None:
    levels = [Level(400.0, "threshold"), Level(500.0, "published", dotted=True)]
    lines = draw_chart(ramp(40), levels, width=80, height=10, braille=False)
    assert any(line.endswith("threshold 400") for line in lines)
    assert lines[0].endswith("published 500")
    assert ". " in lines[0]
    assert any("----" in line for line in lines[:8])
    assert lines[0].lstrip().startswith("500|")
    assert lines[-1].split()[-2:] == ["39,000", "steps"]
    assert lines[-1].split()[0] == "0"


@pytest.mark.parametrize("braille", [True, False])
def test_two_levels_in_one_line_are_both_named_there(
    braille: bool,  # noqa: FBT001 - pytest gives it by name
) -> None:
    levels = [Level(475.0, "threshold"), Level(500.0, "published", dotted=True)]
    for width, first in ((80, "published 500, threshold 475"), (50, "published 500")):
        lines = draw_chart(ramp(9), levels, width=width, height=8, braille=braille)
        assert lines[0].endswith(first)
        # Where there is no room for both, the other is below.
        assert sum("threshold 475" in line for line in lines) == 1


@given(st.floats(0, 500), st.integers(7, 30))
def test_a_level_is_named_in_the_line_that_it_is_drawn_in(value: float, height: int) -> None:
    lines = draw_chart(ramp(9), [Level(value, "here")], width=80, height=height, braille=False)
    (named,) = (line for line in lines if "here" in line)
    assert "--" in named


def test_the_curve_starts_low_and_ends_high_in_braille_too() -> None:
    lines = draw_chart(ramp(100), width=60, height=10)
    plot = [line.partition("┤")[2] for line in lines[:8]]
    first, last = plot[-1], plot[0]
    assert first[0] != " "
    assert len(last) == max(map(len, plot))
    assert not first[20:].strip()


@pytest.mark.parametrize("points", [[], [Point(10.0, math.nan)]])
def test_without_an_episode_the_levels_are_there_already(points: list[Point]) -> None:
    assert draw_chart(points, width=80, height=10) == []
    lines = draw_chart(points, [Level(475.0, "threshold")], width=80, height=10)
    assert "threshold 475" in "\n".join(lines)
    assert lines[-1].endswith("no episode yet")


def test_one_point_is_one_mark() -> None:
    assert len(heights(draw_chart([Point(8.0, 3.0)], width=60, height=9, braille=False))) == 1


def test_a_terminal_without_room_gets_nothing() -> None:
    assert draw_chart(ramp(5), width=FEWEST_COLUMNS - 1, height=20) == []
    assert draw_chart(ramp(5), width=80, height=FEWEST_ROWS - 1) == []
