"""Progress where nobody draws bars: a line now and then, with speed and time left."""

from __future__ import annotations

import io

from shoalctl.flash.image.progress import Lines
from shoalctl.flash.image.stages import Stage


def test_a_line_comes_every_ten_seconds_with_speed_and_time_left() -> None:
    now, out = [0.0], io.StringIO()
    lines = Lines(out, lambda: now[0])
    lines.begin(Stage.WRITE, 100_000_000)
    for _ in range(25):
        now[0] += 1
        lines.advance(2_000_000)
    assert out.getvalue().splitlines() == [
        "Writing",
        "  20.0 MB of 100.0 MB, 2.0 MB/s, 40s left",
        "  40.0 MB of 100.0 MB, 2.0 MB/s, 30s left",
    ]


def test_without_a_size_there_is_no_time_left() -> None:
    now, out = [0.0], io.StringIO()
    lines = Lines(out, lambda: now[0])
    lines.begin(Stage.WRITE, None)
    now[0] = 10
    lines.advance(5_000_000)
    assert out.getvalue().splitlines()[1] == "  5.0 MB, 500.0 KB/s"
