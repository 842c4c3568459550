"""How the mean return went, in a bounded number of points however long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEPT: Final = 4096
"""Points at most: of a longer curve every other goes, and they come half as often."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A moment of training.

    Attributes:
        env_steps: Of all devices together.
        return_mean: Of the last episodes that had ended then.
    """

    env_steps: int
    return_mean: float


class LearningCurve:
    """Takes a point for each moment, and keeps the first, the last, and an even choice between.

    curve = LearningCurve()
    curve.note(2048, 31.5)
    curve.points      # (CurvePoint(2048, 31.5),)
    """

    def __init__(self, kept: int = KEPT) -> None:
        """Has no point yet.

        Args:
            kept: Points at most, but for the last.
        """
        self._kept = kept
        self._points: list[CurvePoint] = []
        self._last: CurvePoint | None = None
        self._every = 1
        self._noted = 0

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """By steps, the fewest first."""
        if self._last is None or self._points[-1:] == [self._last]:
            return tuple(self._points)
        return (*self._points, self._last)

    def note(self, env_steps: int, return_mean: float) -> None:
        """Takes the next point; steps never fall."""
        self._last = CurvePoint(env_steps, return_mean)
        if self._noted % self._every == 0:
            self._points.append(self._last)
        self._noted += 1
        if len(self._points) > self._kept:
            self._points = self._points[::2]
            self._every *= 2
