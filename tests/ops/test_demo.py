"""The pure parts of `shoal demo`."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_state import short_run

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig
from cloud_learner.quantization.export import export_policy
from cloud_learner.training.published_score import published_score
from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.errors import ConfigError, EnvironmentFailed
from shoal.v1 import fleet_pb2
from shoalctl.broker.broker import BrokerConfig
from shoalctl.demo.command import run_demo
from shoalctl.demo.options import DemoOptions, PlanFlags, check_options, make_plan
from shoalctl.demo.presets import (
    ALGORITHMS,
    PRESETS,
    algorithm_path,
    default_algorithm,
    preset_of,
    training_tables,
)
from shoalctl.demo.result import End, Meter, Outcome, Solved, is_solved, number, result_envelope
from shoalctl.demo.summary import advice, summary
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
    assert not is_solved(_training(return_mean=475.0, return_window=100), None)


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


def _outcome(**fields: object) -> Outcome:
    values: dict[str, object] = {
        "env_id": "CartPole-v1",
        "algorithm": "appo",
        "seed": 0,
        "solved": None,
        "ended": End.TIMEOUT,
        "wall_s": 1.0,
        "threshold": 475.0,
        "published": None,
        "restarts": {},
    }
    return Outcome(**(values | fields))  # type: ignore[arg-type]


def test_the_envelope_is_json_even_before_an_episode_has_ended() -> None:
    device = fleet_pb2.Device(device_id="device-0")
    device.telemetry.active_digest = b"\x01\x02"
    envelope = result_envelope(
        _outcome(), _training(return_mean=math.nan), [device], fleet_pb2.Audit(balanced=True)
    )
    text = json.dumps(envelope, allow_nan=False)
    assert json.loads(text)["return_mean"] is None
    assert json.loads(text)["devices"][0]["active_digest"] == "0102"
    assert number(1.23456) == 1.235
    assert "NOT solved in 1.0 s" in summary(envelope)


def test_the_summary_says_what_others_have_published_and_how_it_ended() -> None:
    outcome = _outcome(solved=Solved(90_000, 9.5), published=published_score("CartPole-v1", "appo"))
    envelope = result_envelope(outcome, _training(), [], fleet_pb2.Audit(balanced=True))
    assert envelope["solved_at"] == {"env_steps": 90_000, "wall_s": 9.5}
    text = summary(envelope)
    assert "CartPole-v1 solved in 1.0 s" in text
    assert "published  500 +- 0 by PPO after 100,000 steps" in text
    ended = _outcome(ended=End.STEPS, threshold=None)
    text = summary(result_envelope(ended, _training(), [], fleet_pb2.Audit()))
    assert "CartPole-v1 ended, NOT solved, in 1.0 s" in text
    assert "(threshold none)" in text


def test_a_demo_out_of_time_says_what_was_in_the_way() -> None:
    device = fleet_pb2.Device(device_id="device-0")

    def after(devices: list[fleet_pb2.Device], **chunks: int) -> str:
        audit = fleet_pb2.Audit(balanced=True, **chunks)
        return advice(result_envelope(_outcome(), _training(), devices, audit))

    assert "no device came up" in after([])
    assert "rejected all 9 chunks: `shoal agent check CartPole-v1`" in after(
        [device], produced=9, rejected=9
    )
    assert "--timeout-s" in after([device], produced=9, trained=9)
    text = summary(result_envelope(_outcome(), fleet_pb2.Training(), [], fleet_pb2.Audit()))
    assert "none came up" in text
    assert "mean return unknown" in text
    assert "precision  unknown" in text


@pytest.mark.parametrize(
    ("env_id", "algorithm", "mean"),
    [
        ("CartPole-v1", "appo", 500.0),
        ("Pendulum-v1", "sac", -156.995),
        ("CartPole-v1", "mine:Own", None),
        ("mine:Env", "appo", None),
    ],
)
def test_a_published_score_is_of_the_same_algorithm_or_its_kin(
    env_id: str, algorithm: str, mean: float | None
) -> None:
    score = published_score(env_id, algorithm)
    assert (score.mean if score else None) == mean


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


@pytest.mark.parametrize(
    ("env_id", "algorithm"), [*PRESETS, ("Acrobot-v1", "impala"), ("mine:Env", "sac")]
)
def test_a_preset_only_names_keys_that_exist(env_id: str, algorithm: str, tmp_path: Path) -> None:
    tables = training_tables(
        preset_of(env_id, algorithm), algorithm, envs_in_fleet=32, chunk_steps=32, ahead=2
    )
    lines = ['fleet = "demo"', 'identity = "i"', 'state_dir = "s"']
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    path = tmp_path / "learner.toml"
    path.write_text("\n".join(lines))
    assert tomllib.loads(path.read_text())
    training = load_config(LearnerConfig, path, environ={}).training
    assert training.batch_steps == 2048
    chosen = load_algorithm(training.algorithm, training.settings)
    for name, value in tables.get("training.settings", {}).items():
        assert getattr(chosen.settings, name) == value


def _flags(**given: object) -> PlanFlags:
    names = PlanFlags.__dataclass_fields__
    values: dict[str, object] = dict.fromkeys(names)
    values |= {
        "env": "CartPole-v1",
        "seed": 0,
        "mosquitto": False,
        "lockstep": False,
        "sync": False,
    }
    values |= {"sets": (), "env_sets": ()}
    return PlanFlags(**(values | given))  # type: ignore[arg-type]


def test_without_flags_a_demo_is_cartpole_by_appo_on_four_devices() -> None:
    assert make_plan(_flags()) == DemoPlan("CartPole-v1", devices=4, seed=0)


def test_an_environment_brings_its_algorithm_and_flags_go_before_presets() -> None:
    plan = make_plan(_flags(env="Pendulum-v1", devices=2, chunk_steps=5))
    preset = PRESETS["Pendulum-v1", "sac"]
    assert (plan.algorithm, plan.devices, plan.chunk_steps) == ("sac", 2, 5)
    assert (plan.envs, plan.ahead) == (preset.envs, preset.ahead)
    assert default_algorithm("mine:Env") == "appo"


def test_what_flags_set_is_what_the_learner_and_the_devices_are_told(tmp_path: Path) -> None:
    plan = make_plan(
        _flags(
            devices=1,
            network="lstm",
            max_lag=7,
            sets=("training.settings.clip=0.1", "policies_kept=9", "training.network.hidden=[8]"),
            env_sets=("goal_velocity=0.5", "name=fast", 'odd key={"a b" = [1, 2]}'),
        )
    )
    directory = make_workspace(tmp_path / "demo", plan).directory
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    agent = load_config(AgentConfig, directory / "device-0.toml", environ={})
    assert (learner.policies_kept, learner.training.max_lag) == (9, 7)
    assert (learner.training.network.kind, learner.training.network.hidden) == ("lstm", (8,))
    assert learner.training.settings["clip"] == 0.1
    assert learner.training.settings["epochs"] == 3  # the preset's other settings stay
    assert agent.env.kwargs == {
        "goal_velocity": 0.5,
        "name": "fast",
        "odd key": {"a b": [1, 2]},
    }


def test_in_lockstep_everything_that_acts_follows_from_the_seed(tmp_path: Path) -> None:
    plan = make_plan(_flags(seed=7, devices=3, ahead=2, lockstep=True))
    directory = make_workspace(tmp_path / "demo", plan).directory
    training = load_config(LearnerConfig, directory / "learner.toml", environ={}).training
    assert (training.mode, training.lockstep_devices, training.lockstep_chunks) == (
        "lockstep",
        3,
        2,
    )
    agents = [
        load_config(AgentConfig, directory / f"{name}.toml", environ={}) for name in plan.device_ids
    ]
    for agent in agents:
        assert (agent.actor.seed, agent.actor.max_chunks_per_policy) == (7, 2)
        assert agent.actor.pace_timeout_s == 86_400.0
        assert agent.actor.precision == "int8"
    assert len({agent.env.seed for agent in agents}) == 3


def test_what_training_starts_from_is_what_the_learner_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    made = short_run(tmp_path / "made", chunks=1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.onnx").write_bytes(export_policy(made.brain.learner.policy))
    plan = make_plan(_flags(init=Path("p.onnx")))
    directory = make_workspace(tmp_path / "demo", plan).directory
    assert load_config(LearnerConfig, directory / "learner.toml", environ={}).init == (
        tmp_path / "p.onnx"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": "sak"}, "--algorithm sak: did you mean sac"),
        ({"algorithm": "ppo2"}, "module:Class"),
        ({"algorithm": "banana"}, "use appo, .*, or name your own as module:Class"),
        ({"sets": ("training.clip",)}, "--set 'training.clip': give key=value"),
        ({"env_sets": ("=3",)}, "--env-set"),
        ({"lockstep": True, "ahead": 0}, "--ahead 0"),
        ({"sync": True, "ahead": 0}, "--sync with --ahead 0"),
        ({"sync": True, "lockstep": True}, "--lockstep with --sync"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(_flags(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sets": ("training.max_lags=3",)}, "--set training.max_lags: .*did you mean max_lag"),
        ({"sets": ("training.max_lag=soon",)}, "--set training.max_lag: .*int"),
        ({"network": "transformer"}, "--network: .*attention"),
        ({"sets": ("training.settings.clop=1",)}, "did you mean clip"),
        ({"sets": ("training.settings.clip=-1.0",)}, "clip"),
        ({"algorithm": "no_such_module:Mine"}, "no_such_module"),
        ({"init": Path("gone.onnx")}, "gone.onnx: No such file"),
        ({"algorithm": "dqn", "sync": True}, "'sync' needs .* trains from transitions"),
        ({"algorithm": "dqn", "network": "lstm"}, "'lstm' remembers.* 'mlp' or 'cnn'.*APPO"),
        ({"algorithm": "sac", "network": "attention"}, "'attention' remembers.* or IMPALA"),
    ],
)
def test_what_the_learner_does_not_have_is_refused_before_anything_starts(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    plan = make_plan(_flags(**given))
    with pytest.raises(ConfigError, match=message):
        make_workspace(tmp_path / "demo", plan)


def test_where_a_preset_never_waits_lockstep_has_devices_wait_for_each_version(
    tmp_path: Path,
) -> None:
    plan = make_plan(_flags(algorithm="dqn", lockstep=True))
    assert plan.ahead >= 1
    directory = make_workspace(tmp_path / "demo", plan).directory
    config = load_config(LearnerConfig, directory / "learner.toml", environ={})
    assert config.training.mode == "lockstep"


@pytest.mark.parametrize(
    ("env_id", "message"), [("Pendulum-v1", "--until-return"), ("Nowhere-v0", "Nowhere-v0")]
)
def test_a_demo_that_cannot_end_or_begin_leaves_nothing_behind(
    env_id: str, message: str, tmp_path: Path
) -> None:
    plan, directory = DemoPlan(env_id, devices=1, seed=0), tmp_path / "demo"
    with pytest.raises(EnvironmentFailed, match=message):
        run_demo(DemoOptions(plan, None, 10.0, as_json=True, directory=directory), started_s=0.0)
    assert not directory.exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_named_in_short_or_by_its_path(name: str) -> None:
    path = algorithm_path(name)
    assert algorithm_path(path) == path
    assert load_algorithm(path, {}).path == path


@pytest.mark.parametrize(
    ("plan", "flag"),
    [
        (DemoPlan("CartPole-v1", devices=0, seed=0), "--devices"),
        (DemoPlan("CartPole-v1", devices=4, seed=0, envs=0), "--envs"),
        (DemoPlan("CartPole-v1", devices=4, seed=-1), "--seed"),
        (DemoPlan("CartPole-v1", devices=4, seed=0, chunk_steps=0), "--chunk-steps"),
        (DemoPlan("CartPole-v1", devices=4, seed=0, ahead=-1), "--ahead"),
    ],
)
def test_a_number_out_of_range_names_its_flag(plan: DemoPlan, flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        check_options(DemoOptions(plan, None, 10.0, as_json=False, directory=None))
