"""A learning curve stays small, and keeps its shape and both ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.training.learning_curve import CurvePoint, LearningCurve


def test_before_the_first_point_there_is_none() -> None:
    assert LearningCurve().points == ()


@given(st.integers(0, 300), st.integers(1, 20))
def test_it_is_bounded_and_keeps_the_first_the_last_and_an_even_choice_between(
    count: int, kept: int
) -> None:
    curve = LearningCurve(kept)
    for number in range(count):
        curve.note(10 * number, float(number))
    points = curve.points
    assert len(points) <= kept + 1
    assert points[:1] == (CurvePoint(0, 0.0),)[:count]
    assert points[-1:] == (CurvePoint(10 * (count - 1), float(count - 1)),)[:count]
    apart = {b.env_steps - a.env_steps for a, b in pairwise(points[:-1])}
    assert len(apart) <= 1
    assert len(set(points)) == len(points)
