"""A curve over environment steps as lines of text, with levels drawn in: for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

FEWEST_ROWS: Final = 5
FEWEST_COLUMNS: Final = 24
_PLOT_COLUMNS: Final = 10
"""Columns that a plot keeps, before names of levels, and numbers, are left out for it."""
_BRAILLE: Final = 0x2800
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True, slots=True)
class Point:
    """A value, and after how many environment steps."""

    steps: float
    value: float


@dataclass(frozen=True, slots=True)
class Level:
    """A value that the curve is seen against, `dotted` or dashed."""

    value: float
    name: str
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where numbers lie among `cells`: `low` in the first, `high` in the last."""

    low: float
    high: float
    cells: int

    def cell(self, value: float) -> int:
        part = (value - self.low) / (self.high - self.low)
        return round(min(1.0, max(0.0, part)) * (self.cells - 1))

    def value(self, cell: int) -> float:
        return self.low + (self.high - self.low) * cell / max(1, self.cells - 1)


def draw_chart(
    points: Sequence[Point],
    levels: Sequence[Level] = (),
    *,
    width: int,
    height: int,
    braille: bool = True,
) -> list[str]:
    """Draws a curve; values that are not finite are left out.

    Args:
        points: By steps, the fewest first.
        levels: Drawn across, each with its name and value on the right where there is room.
        width: Columns, at most; under `FEWEST_COLUMNS` nothing is drawn.
        height: Lines, at most; under `FEWEST_ROWS` nothing is drawn.
        braille: Whether the terminal has braille; else it is drawn in ASCII.

    Returns:
        The lines; none where there is no room or nothing to draw.
    """
    shown = [p for p in points if math.isfinite(p.steps) and math.isfinite(p.value)]
    across = [level for level in levels if math.isfinite(level.value)]
    if width < FEWEST_COLUMNS or height < FEWEST_ROWS or not (shown or across):
        return []
    rows = height - 2
    low, high = _range([p.value for p in shown] + [level.value for level in across])
    texts = {0: _number(high), rows // 2: "", rows - 1: _number(low)}
    texts[rows // 2] = _number(_Scale(low, high, rows).value(rows - 1 - rows // 2))
    margin = max(map(len, texts.values()))
    dots = (2, 4) if braille else (1, 1)
    y = _Scale(low, high, rows * dots[1])
    inside = width - margin - 1
    named = _names(across, y, dots[1], together=True)
    if inside - _wide(named) < inside // 2:
        named = _names(across, y, dots[1], together=False)
    if inside - _wide(named) < _PLOT_COLUMNS:
        named = {}
    columns = inside - _wide(named)
    steps = [p.steps for p in shown]
    x = _Scale(*_range(steps, whole=True), columns * dots[0])
    grid = _grid(shown, across, x, y)
    plot = _in_braille(grid) if braille else ["".join(row) for row in grid]
    edge, corner, line = ("┤", "└", "─") if braille else ("|", "+", "-")
    lines = [
        f"{texts.get(row, ''):>{margin}}{edge}{text}" + (f" {named[row]}" if row in named else "")
        for row, text in enumerate(plot)
    ]
    lines.append(" " * margin + corner + line * columns)
    lines.append(" " * (margin + 1) + _axis(x, columns, steps))
    return [each.rstrip()[:width] for each in lines]


def thin(points: list[Point]) -> list[Point]:
    """Every other point, the first and the last among them."""
    return [*points[:-1:2], points[-1]] if points else []


def _grid(
    points: Sequence[Point], levels: Sequence[Level], x: _Scale, y: _Scale
) -> list[list[str]]:
    """Rows of marks, the highest first: `*` of the curve, `-` and `.` of levels."""
    grid = [[" "] * x.cells for _ in range(y.cells)]
    for level in levels:
        row = grid[y.cells - 1 - y.cell(level.value)]
        for column in range(x.cells):
            if column % 4 == 0 if level.dotted else column % 6 < 4:  # noqa: PLR2004 - the pattern
                row[column] = "." if level.dotted else "-"
    before: int | None = None
    for column, value in _sampled(points, x):
        at = y.cell(value)
        came = at if before is None else before
        for cell in range(min(at, came), max(at, came) + 1):
            grid[y.cells - 1 - cell][column] = "*"
        before = at
    return grid


def _sampled(points: Sequence[Point], x: _Scale) -> list[tuple[int, float]]:
    """Each column that the points span, and the curve's value there."""
    found = {x.cell(point.steps): point.value for point in points}  # the last one of a column
    sampled = list(found.items())[:1]
    for (left, low), (right, high) in pairwise(found.items()):
        sampled += [
            (column, low + (high - low) * (column - left) / (right - left))
            for column in range(left + 1, right)
        ]
        sampled.append((right, high))
    return sampled


def _in_braille(grid: Sequence[Sequence[str]]) -> list[str]:
    lines = []
    for top in range(0, len(grid), len(_DOTS)):
        cells = []
        for left in range(0, len(grid[0]), 2):
            bits = sum(
                _DOTS[down][across]
                for down in range(len(_DOTS))
                for across in range(2)
                if grid[top + down][left + across] != " "
            )
            cells.append(chr(_BRAILLE + bits) if bits else " ")
        lines.append("".join(cells))
    return lines


def _wide(named: Mapping[int, str]) -> int:
    """Columns that names take, with the one before them."""
    return max((len(name) for name in named.values()), default=-1) + 1


def _names(levels: Sequence[Level], y: _Scale, dots: int, *, together: bool) -> dict[int, str]:
    """The line at which each level is named.

    Args:
        levels: Those that are drawn.
        y: Where they are.
        dots: Of its cells in a line.
        together: Whether levels of one line are all named there; else all but the highest are
            named at the nearest line that is free.
    """
    named: dict[int, str] = {}
    for level in sorted(levels, key=lambda each: -each.value):
        own = (y.cells - 1 - y.cell(level.value)) // dots
        if together:
            before = [named[own]] if own in named else []
            named[own] = ", ".join([*before, f"{level.name} {_number(level.value)}"])
            continue
        free = [row for row in range(y.cells // dots) if row not in named]
        below = [row for row in free if row > max(named, default=-1)]
        if below or free:
            row = min(below or free, key=lambda each: abs(each - own))
            named[row] = f"{level.name} {_number(level.value)}"
    return named


def _axis(x: _Scale, columns: int, steps: Sequence[float]) -> str:
    first, last = (f"{x.low:,.0f}", f"{x.high:,.0f} steps") if steps else ("", "no episode yet")
    middle = f"{(x.low + x.high) / 2:,.0f}" if steps else ""
    room = columns - len(first) - len(last)
    if room < 1:
        return last[:columns]
    if room < len(middle) + 2:
        middle = ""
    start = max(1, columns // 2 - len(first) - len(middle) // 2)
    start = min(start, room - len(middle))
    return first + " " * start + middle + " " * (room - len(middle) - start) + last


def _range(values: Sequence[float], *, whole: bool = False) -> tuple[float, float]:
    """The lowest and the highest, apart in any case."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if not high > low:
        wide = max(1.0, abs(low) * 1e-3)
        return (low, low + wide) if whole else (low - wide, low + wide)
    return low, high


def _number(value: float) -> str:
    """A value for people, in few characters."""
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"  # noqa: PLR2004 - no -1e-17
