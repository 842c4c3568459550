"""The picture of a running demo: it can be drawn at every stage, and fits its terminal."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.v1 import fleet_pb2
from shoalctl.demo.drawing import render, sparkline
from shoalctl.demo.picture import Picture
from shoalctl.views.chart import Point


def _training(**fields: float) -> fleet_pb2.Training:
    training = fleet_pb2.Training(env_steps=2048, episodes=7, return_mean=31.5, return_window=7)
    for name, value in fields.items():
        setattr(training, name, value)
    return training


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


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.floats(-1e3, 1e3))
def test_a_curve_fits_its_room_and_ends_at_the_newest_value(
    values: list[float], top: float
) -> None:
    curve = sparkline(values, top)
    assert len(curve) <= 60
    assert bool(curve) == bool(values)
