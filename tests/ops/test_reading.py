"""A long read says on stderr how far it is: a line now and then, or a bar at a terminal."""

from __future__ import annotations

from io import StringIO

import pytest

from shoalctl.reading import LINE_S, reading


class Terminal(StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [None, 25])
def test_without_a_terminal_a_line_comes_every_ten_seconds(total: int | None) -> None:
    now_s, out = [0.0], StringIO()
    seen = []
    for item in reading(range(25), "chunks", total=total, out=out, clock=lambda: now_s[0]):
        seen.append(item)
        now_s[0] += LINE_S / 10
    assert seen == list(range(25))
    of = "" if total is None else " of 25"
    assert out.getvalue().splitlines() == [f"read 10{of} chunks", f"read 20{of} chunks"]


def test_what_is_read_at_once_says_nothing() -> None:
    out = StringIO()
    assert list(reading("abc", "chunks", total=3, out=out)) == ["a", "b", "c"]
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar_and_the_items_as_they_are_even_where_one_stops_midway() -> None:
    out = Terminal()
    assert list(reading("abc", "chunks", total=3, out=out)) == ["a", "b", "c"]
    assert "chunks" in out.getvalue()
    for item in reading("abc", "chunks", total=None, out=out):
        assert item == "a"
        break
