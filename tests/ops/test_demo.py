"""The pure parts of `shoal demo`."""

from __future__ import annotations

import io
import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.config import LearnerConfig
from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.v1 import fleet_pb2
from shoalctl.broker import BrokerConfig
from shoalctl.demo.command import DemoOptions, check_options
from shoalctl.demo.presets import PRESETS, training_tables
from shoalctl.demo.result import Meter, Outcome, is_solved, number, result_envelope
from shoalctl.demo.view import Picture, PlainView, bytes_text, render, sparkline
from shoalctl.demo.workspace import DemoPlan, make_workspace


def _training(**fields: float) -> fleet_pb2.Training:
    training = fleet_pb2.Training(env_steps=2048, episodes=7, return_mean=31.5, return_window=7)
    for name, value in fields.items():
        setattr(training, name, value)
    return training


def test_is_solved_only_by_a_full_window_of_episodes() -> None:
    assert not is_solved(_training(return_mean=500.0, return_window=99), 475.0)
    assert not is_solved(_training(return_mean=474.9, return_window=100), 475.0)
    assert not is_solved(_training(return_mean=math.nan, return_window=100), 475.0)
    assert is_solved(_training(return_mean=475.0, return_window=100), 475.0)


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1), min_size=1))
def test_a_meter_counts_on_when_its_source_starts_again_from_zero(runs: list[list[int]]) -> None:
    meter, total = Meter(), 0
    for steps in runs:
        count, reading = 0, meter.reading(0)
        assert reading == total
        for step in steps:
            count += step
            total += step
            assert meter.reading(count) == total


def test_the_envelope_is_json_even_before_an_episode_has_ended() -> None:
    outcome = Outcome("CartPole-v1", 0, solved=False, wall_s=1.0, threshold=475.0, restarts={})
    device = fleet_pb2.Device(device_id="device-0")
    device.telemetry.active_digest = b"\x01\x02"
    envelope = result_envelope(
        outcome, _training(return_mean=math.nan), [device], fleet_pb2.Audit(balanced=True)
    )
    text = json.dumps(envelope, allow_nan=False)
    assert json.loads(text)["return_mean"] is None
    assert json.loads(text)["devices"][0]["active_digest"] == "0102"
    assert number(1.23456) == 1.235


def test_every_configuration_the_demo_writes_is_one_its_process_accepts(tmp_path: Path) -> None:
    plan = DemoPlan("CartPole-v1", devices=2, seed=3)
    workspace = make_workspace(tmp_path / "demo", plan)
    directory = workspace.directory
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    broker = load_config(BrokerConfig, directory / "broker.toml", environ={})
    agents = [
        load_config(AgentConfig, directory / f"{name}.toml", environ={}) for name in plan.device_ids
    ]
    assert broker.devices == plan.device_ids
    assert {agent.broker.port for agent in agents} == {broker.port, learner.broker.port}
    assert {agent.parameter_server.port for agent in agents} == {learner.server.port}
    assert learner.training.batch_steps == 2 * 8 * 32 * 2
    assert len({agent.env.seed for agent in agents}) == 2
    assert all("key" not in path.read_text() for path in directory.glob("*.toml"))


def test_a_preset_only_names_keys_that_exist(tmp_path: Path) -> None:
    for env_id in [*PRESETS, "Acrobot-v1"]:
        tables = training_tables(env_id, envs_in_fleet=32, chunk_steps=32, ahead=2)
        lines = ['fleet = "demo"', 'identity = "i"', 'state_dir = "s"']
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
        path = tmp_path / "learner.toml"
        path.write_text("\n".join(lines))
        assert tomllib.loads(path.read_text())
        assert load_config(LearnerConfig, path, environ={}).training.batch_steps == 2048


@pytest.mark.parametrize(
    ("plan", "flag"),
    [
        (DemoPlan("CartPole-v1", devices=0, seed=0), "--devices"),
        (DemoPlan("CartPole-v1", devices=4, seed=0, envs=0), "--envs"),
        (DemoPlan("CartPole-v1", devices=4, seed=-1), "--seed"),
    ],
)
def test_a_number_out_of_range_names_its_flag(plan: DemoPlan, flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        check_options(DemoOptions(plan, None, 10.0, as_json=False, directory=None))


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
    picture.curve = [1.0, 20.0, 300.0]
    picture.devices = [fleet_pb2.Device(device_id="device-0", health=fleet_pb2.HEALTH_ONLINE)]
    console.print(render(picture))
    output = console.file
    assert isinstance(output, io.StringIO)
    assert "device-0" in output.getvalue()
    assert "online" in output.getvalue()


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
