"""What there is to show of a running demo at one moment, and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.v1 import fleet_pb2
from shoalctl.views.chart import Point, thin

CURVE_EVERY_S = 0.25
CURVE_KEPT = 4096
"""Points of a curve at most: of a longer one every other goes, and they come half as often."""


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
