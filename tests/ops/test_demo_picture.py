"""What a demo remembers of its curve, and how its numbers are written."""

from __future__ import annotations

from shoal.v1 import fleet_pb2
from shoalctl.demo.picture import CURVE_KEPT, Picture, bytes_text
from shoalctl.views.chart import Point


def test_a_long_run_keeps_a_bounded_curve_from_its_first_point_to_its_last() -> None:
    picture = Picture("CartPole-v1", 475.0)
    for step in range(3 * CURVE_KEPT):
        training = fleet_pb2.Training(episodes=1, return_mean=float(step), env_steps=step)
        picture.take(training, 10.0 * step)
    assert len(picture.curve) <= CURVE_KEPT
    assert picture.curve[0].steps == 0.0
    assert picture.curve[-1].steps == 3 * CURVE_KEPT - 1


def test_the_curve_gets_points_at_intervals_from_the_first_episode_on() -> None:
    picture = Picture("CartPole-v1", 475.0)
    for now_s, episodes, mean in ((0.0, 0, 0.0), (0.1, 1, 9.0), (0.2, 2, 10.0), (0.7, 3, 12.0)):
        training = fleet_pb2.Training(episodes=episodes, return_mean=mean, env_steps=100 * episodes)
        picture.take(training, now_s)
    assert picture.curve == [Point(100.0, 9.0), Point(300.0, 12.0)]
    assert picture.training is not None
    assert picture.training.episodes == 3


def test_sizes_are_written_for_people() -> None:
    assert [bytes_text(n) for n in (12, 1_500, 2_340_000, 5e9)] == [
        "12 B",
        "1.5 KB",
        "2.3 MB",
        "5.0 GB",
    ]
