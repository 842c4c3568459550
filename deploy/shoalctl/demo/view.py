"""What a person sees of a running demo: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.box import HEAVY_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.v1 import fleet_pb2
from shoalctl.views.chart import Level, Point, draw_chart, thin

BARS = "▁▂▃▄▅▆▇█"
CURVE_POINTS = 60
CURVE_EVERY_S = 0.25
CURVE_KEPT = 4096
"""Points of a curve at most: of a longer one every other goes, and they come half as often."""
CHART_ROWS = 12
PLAIN_EVERY_S = 1.0
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


@dataclass(slots=True)
class Picture:
    """All there is to show at one moment.

    Attributes:
        threshold: What counts as solved; inf: nothing does.
        published: What others have published; empty: nothing is known.
        published_mean: The mean of that; NaN: nothing is known.
        curve: Mean return of the last 100 episodes, oldest first.
        elapsed_s: Since the command started.
        notes: What happened to processes, newest last.
        pids: The process id of each process of the demo.
        next_point_s: When the curve gets its next point.
        point_every_s: How long after that it gets another.
    """

    env_id: str
    threshold: float
    published: str = ""
    published_mean: float = math.nan
    elapsed_s: float = 0.0
    training: fleet_pb2.Training | None = None
    devices: Sequence[fleet_pb2.Device] = ()
    curve: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    next_point_s: float = 0.0
    point_every_s: float = CURVE_EVERY_S

    def take(self, training: fleet_pb2.Training, now_s: float) -> None:
        """Shows what the learner says now; the curve goes on from the first episode that ended."""
        self.training = training
        if training.episodes and now_s >= self.next_point_s:
            self.curve.append(Point(training.env_steps, training.return_mean))
            self.next_point_s = now_s + self.point_every_s
            if len(self.curve) > CURVE_KEPT:
                self.curve = thin(self.curve)
                self.point_every_s *= 2


class View(Protocol):
    """Shows pictures; a context manager."""

    def show(self, picture: Picture) -> None:
        """Shows the newest picture."""

    def __enter__(self) -> Self:
        """Starts."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the terminal as it was."""


def make_view(stream: TextIO) -> View:
    """A live view on a terminal, else plain lines."""
    return LiveView(stream) if stream.isatty() else PlainView(stream)


class PlainView:
    """One line a second, and one for each thing that happens."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        """Writes to `stream`."""
        self._stream = stream
        self._next_s = 0.0
        self._noted = 0

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to undo."""

    def show(self, picture: Picture) -> None:
        """Writes what is new."""
        for note in picture.notes[self._noted :]:
            self._say(f"{picture.elapsed_s:6.1f} s  {note}")
        self._noted = len(picture.notes)
        if picture.training is None or picture.elapsed_s < self._next_s:
            return
        self._next_s = picture.elapsed_s + PLAIN_EVERY_S
        self._say(summary_line(picture, picture.training))

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveView:
    """The fleet, the learning curve and the way to the threshold, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        """Draws on `stream`, which must be a terminal."""
        self._console = Console(file=stream)
        self._live = Live(
            Text("starting ..."),
            console=self._console,
            refresh_per_second=8,
            transient=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        """Takes over the lower part of the terminal."""
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the terminal back."""
        self._live.__exit__(kind, error, trace)

    def show(self, picture: Picture) -> None:
        """Redraws."""
        size = self._console.size
        braille = self._console.encoding.startswith("utf")
        self._live.update(render(picture, width=size.width, height=size.height, braille=braille))


def summary_line(picture: Picture, training: fleet_pb2.Training) -> str:
    """One line that says where a demo stands."""
    return (
        f"{picture.elapsed_s:6.1f} s  steps {training.env_steps:>8,}  "
        f"return {mean_text(training)}{_of(picture)}  "
        f"policy {training.policy_version}  lag p50 {training.lag_p50:g} max {training.lag_max:g}  "
        f"up {bytes_text(training.bytes_up)}  down {bytes_text(training.bytes_down)}  "
        f"devices {training.devices_online}  {training.learner_state}"
    )


def mean_text(training: fleet_pb2.Training) -> str:
    """The mean return for people; a dash before an episode has ended."""
    return f"{training.return_mean:.1f}" if training.episodes else "-"


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


def bytes_text(count: float) -> str:
    """A size for people."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:  # noqa: PLR2004 decimal units, as networks count
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def age_text(age_s: float) -> str:
    """How long ago, for people; a negative age is never."""
    return "never" if age_s < 0 else f"{age_s:.1f} s"


def _of(picture: Picture) -> str:
    return f"/{picture.threshold:g}" if math.isfinite(picture.threshold) else ""


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
