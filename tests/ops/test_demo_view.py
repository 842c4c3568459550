"""How a demo is shown while it runs: lines, and a picture that fits its terminal."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.v1 import fleet_pb2
from shoalctl.demo.view import (
    CURVE_KEPT,
    Picture,
    PlainView,
    bytes_text,
    render,
    sparkline,
)
from shoalctl.views.chart import Point


def _training(**fields: float) -> fleet_pb2.Training:
    training = fleet_pb2.Training(env_steps=2048, episodes=7, return_mean=31.5, return_window=7)
    for name, value in fields.items():
        setattr(training, name, value)
    return training


def test_plain_lines_come_once_a_second_and_notes_at_once() -> None:
    stream = io.StringIO()
    picture = Picture("CartPole-v1", 475.0, training=_training())
    with PlainView(stream) as view:
        for elapsed_s in (0.0, 0.4, 0.8, 1.2):
            picture.elapsed_s = elapsed_s
            view.show(picture)
        picture.notes.append("learner ended with SIGKILL; started again")
        view.show(picture)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "31.5/475" in lines[0]
    assert "SIGKILL" in lines[2]


def test_the_live_picture_can_be_drawn_at_every_stage() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    picture = Picture("CartPole-v1", 475.0)
    console.print(render(picture))
    picture.training = _training(return_mean=math.nan, episodes=0)
    console.print(render(picture))
    picture.training = _training()
    picture.published = "500 +- 0 by PPO"
    picture.threshold = math.inf
    console.print(render(picture))
    picture.threshold = 475.0
    picture.curve = [Point(100.0 * i, value) for i, value in enumerate((1.0, 20.0, 300.0))]
    picture.published_mean = 500.0
    picture.devices = [fleet_pb2.Device(device_id="device-0", health=fleet_pb2.HEALTH_ONLINE)]
    console.print(render(picture))
    output = console.file
    assert isinstance(output, io.StringIO)
    assert "device-0" in output.getvalue()
    assert "online" in output.getvalue()
    assert "published: 500 +- 0 by PPO" in output.getvalue()
    assert "nothing counts as solved" in output.getvalue()
    assert "threshold 475" in output.getvalue()
    assert "published 500" in output.getvalue()


@pytest.mark.parametrize(
    ("width", "height", "devices"), [(80, 24, 4), (80, 24, 1), (132, 50, 8), (80, 24, 30)]
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_live_picture_fits_its_terminal_with_the_chart_in_it(
    width: int, height: int, devices: int, encoding: str
) -> None:
    from rich.console import Console

    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    console = Console(file=file, width=width, force_terminal=True, no_color=True)
    picture = Picture("CartPole-v1", 475.0, training=_training(), published_mean=500.0)
    picture.published = "500 +- 0 by PPO after 100,000 steps (RL Baselines3 Zoo, one run)"
    picture.curve = [Point(100.0 * i, 4.0 * i) for i in range(100)]
    picture.devices = [
        fleet_pb2.Device(device_id=f"device-{i}", health=fleet_pb2.HEALTH_ONLINE)
        for i in range(devices)
    ]
    console.print(render(picture, width=width, height=height, braille=encoding == "utf-8"))
    file.flush()
    lines = buffer.getvalue().decode(encoding).splitlines()
    charted = any("threshold 475" in line for line in lines)
    assert charted == (devices < 30)
    assert len(lines) <= height or not charted


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


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.floats(-1e3, 1e3))
def test_a_curve_fits_its_room_and_ends_at_the_newest_value(
    values: list[float], top: float
) -> None:
    curve = sparkline(values, top)
    assert len(curve) <= 60
    assert bool(curve) == bool(values)


def test_sizes_are_written_for_people() -> None:
    assert [bytes_text(n) for n in (12, 1_500, 2_340_000, 5e9)] == [
        "12 B",
        "1.5 KB",
        "2.3 MB",
        "5.0 GB",
    ]
