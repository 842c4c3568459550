"""Draws the picture of a running demo so that it fits its terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import HEAVY_HEAD
from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.v1 import fleet_pb2
from shoalctl.demo.picture import Picture, age_text, bytes_text, mean_text
from shoalctl.views.chart import Level, draw_chart

BARS = "▁▂▃▄▅▆▇█"
CURVE_POINTS = 60
CHART_ROWS = 12
_NOTES = 4
_WIDE = 100
_FIXED_ROWS, _FRAME_ROWS = 10, 2
"""What stands around the chart: progress, frame, numbers, headings; and the table's own frame."""
_HEADINGS = (
    "DEVICE",
    "PID",
    "HEALTH",
    "POLICY",
    "BEHIND",
    "STEPS",
    "STEPS/S",
    "UP",
    "DOWN",
    "RSS",
    "AGE",
)
_LEFT_OUT = ("BEHIND",)
"""In a narrow terminal: the lag of the whole fleet stands above."""


def render(picture: Picture, *, width: int = 80, height: int = 24, braille: bool = True) -> Group:
    """The live picture.

    Args:
        picture: What there is to show.
        width: Columns of the terminal.
        height: Its lines; the curve takes what is left of them, or a single line.
        braille: Whether the terminal has more than ASCII.
    """
    parts: list[Table | Panel | Text] = []
    training = picture.training
    if training is None:
        parts.append(Text(f"{picture.elapsed_s:.1f} s  starting broker, learner and devices ..."))
    else:
        parts.append(_progress(picture, training))
        parts.append(
            Panel(
                Text(_curve(picture, training, width - 4, height, braille=braille)),
                title=f"mean return of the last 100 episodes, {picture.env_id}; {_goal(picture)}",
                title_align="left",
                subtitle=f"published: {picture.published}" if picture.published else None,
                subtitle_align="left",
            )
        )
        parts.append(_numbers(training))
    parts.append(_fleet(picture, narrow=width < _WIDE))
    parts.extend(Text(note, style="yellow") for note in picture.notes[-_NOTES:])
    return Group(*parts)


def sparkline(values: Sequence[float], top: float) -> str:
    """A curve of at most `CURVE_POINTS` characters, scaled from its lowest value to `top`."""
    if not values:
        return ""
    step = max(1, -(-len(values) // CURVE_POINTS))
    shown = list(values)[::-step][::-1]
    low, high = min(shown), max(top, *shown)
    span = (high - low) or 1.0
    return "".join(BARS[int((value - low) / span * (len(BARS) - 1))] for value in shown)


def _goal(picture: Picture) -> str:
    if math.isfinite(picture.threshold):
        return f"solved at {picture.threshold:g}"
    return "nothing counts as solved"


def _top(picture: Picture) -> float:
    return picture.threshold if math.isfinite(picture.threshold) else _highest(picture)


def _highest(picture: Picture) -> float:
    return max((point.value for point in picture.curve), default=0.0)


def _curve(
    picture: Picture, training: fleet_pb2.Training, width: int, height: int, *, braille: bool
) -> str:
    """The chart; where the terminal has no room for it, one line."""
    framed = 0 if width < _WIDE else _FRAME_ROWS
    taken = _FIXED_ROWS + framed + len(picture.devices) + len(picture.notes[-_NOTES:])
    levels = [
        Level(picture.threshold, "threshold"),
        Level(picture.published_mean, "published", dotted=True),
    ]
    rows = min(CHART_ROWS, height - taken)
    lines = draw_chart(picture.curve, levels, width=width, height=rows, braille=braille)
    if lines or not braille:
        return "\n".join(lines) or mean_text(training)
    values = [point.value for point in picture.curve]
    return f"{sparkline(values, _top(picture))}  {mean_text(training)}"


def _progress(picture: Picture, training: fleet_pb2.Training) -> Table:
    if not math.isfinite(picture.threshold):
        row = Table.grid(padding=(0, 1))
        row.add_row(f"{picture.elapsed_s:5.1f} s", mean_text(training))
        return row
    mean = training.return_mean if training.episodes else 0.0
    start = min([*(point.value for point in picture.curve), mean, 0.0])
    span = picture.threshold - start
    done = (mean - start) / span if span > 0 else 1.0
    row = Table.grid(padding=(0, 1))
    row.add_row(
        f"{picture.elapsed_s:5.1f} s",
        ProgressBar(total=1.0, completed=max(0.0, min(1.0, done)), width=50),
        f"{mean_text(training)} of {picture.threshold:g}",
    )
    return row


def _numbers(training: fleet_pb2.Training) -> Text:
    return Text(
        f"steps {training.env_steps:,} ({training.steps_per_s:,.0f}/s)   "
        f"episodes {training.episodes:,}   updates {training.updates:,}   "
        f"policy {training.policy_version} {training.precision}\n"
        f"lag of what was trained: p50 {training.lag_p50:g} p99 {training.lag_p99:g} "
        f"max {training.lag_max:g} updates   "
        f"gaps: quantization {training.kl_quantization:.2g}, "
        f"staleness {max(0.0, training.kl_staleness):.2g} nats   entropy {training.entropy:.2f}\n"
        f"up {bytes_text(training.bytes_up)}   down {bytes_text(training.bytes_down)} "
        f"(as fp32 {bytes_text(training.bytes_down_fp32)})   "
        f"chunks: trained {training.audit.trained}, expired {training.audit.expired}, "
        f"dropped {training.audit.dropped}, rejected {training.audit.rejected}, "
        f"in flight {training.audit.in_flight}"
    )


def _fleet(picture: Picture, *, narrow: bool) -> Table:
    """What each device reports; in a narrow terminal without frames, so that numbers stay whole."""
    right_alone = (0, 1, 0, 0)
    table = Table(box=None if narrow else HEAVY_HEAD, padding=right_alone if narrow else (0, 1))
    rows = [_device(picture, device) for device in picture.devices]
    for heading in _HEADINGS:
        if not (narrow and heading in _LEFT_OUT):
            left = heading in ("DEVICE", "HEALTH")
            # Never cut with an ellipsis, which ASCII lacks, nor wrapped, which costs the chart.
            table.add_column(
                heading, justify="left" if left else "right", no_wrap=True, overflow="crop"
            )
    for row in rows:
        table.add_row(*(row[h] for h in _HEADINGS if not (narrow and h in _LEFT_OUT)))
    return table


def _device(picture: Picture, device: fleet_pb2.Device) -> dict[str, str]:
    report = device.telemetry
    health = fleet_pb2.Health.Name(device.health).removeprefix("HEALTH_").lower()
    return {
        "DEVICE": device.device_id,
        "PID": str(picture.pids.get(device.device_id, "-")),
        "HEALTH": health.replace("_", " "),
        "POLICY": str(report.active_version),
        "BEHIND": str(device.lag_updates),
        "STEPS": f"{report.env_steps:,}",
        "STEPS/S": f"{report.steps_per_s:,.0f}",
        "UP": bytes_text(report.bytes_up),
        "DOWN": bytes_text(report.bytes_down),
        "RSS": bytes_text(report.rss_bytes),
        "AGE": age_text(device.telemetry_age_s),
    }
