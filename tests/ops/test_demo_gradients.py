"""`shoal demo --mode gradients`: what its flags say, and what its processes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig
from cloud_learner.gradients.making import check_gradients
from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.v1 import fleet_pb2
from shoalctl.demo.options import DemoOptions, PlanFlags, check_options, make_plan
from shoalctl.demo.presets import GRADIENT_PRESETS
from shoalctl.demo.result import End, Outcome, result_envelope
from shoalctl.demo.summary import summary
from shoalctl.demo.workspace import make_workspace


def flags(**given: object) -> PlanFlags:
    values: dict[str, object] = dict.fromkeys(PlanFlags.__dataclass_fields__)
    values |= {"env": "CartPole-v1", "seed": 0, "mosquitto": False, "lockstep": False}
    values |= {"sets": (), "env_sets": (), "gradients": True}
    return PlanFlags(**(values | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("env_id", [*(env for env, _ in GRADIENT_PRESETS), "Acrobot-v1"])
def test_learner_and_devices_are_told_the_mode_and_accept_the_preset(
    env_id: str, tmp_path: Path
) -> None:
    plan = make_plan(flags(env=env_id, update_interval=50, shards=4, devices=2))
    directory = make_workspace(tmp_path / "demo", plan).directory
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    assert learner.training.mode == "gradients"
    assert learner.gradients.shards == 4
    check_gradients(
        learner.training, load_algorithm(learner.training.algorithm, learner.training.settings)
    )
    for name in plan.device_ids:
        agent = load_config(AgentConfig, directory / f"{name}.toml", environ={})
        assert agent.mode == "gradients"
        assert agent.gradients.update_interval == 50


def test_without_the_mode_nothing_of_it_is_told(tmp_path: Path) -> None:
    plan = make_plan(flags(gradients=False))
    assert plan.gradients is None
    directory = make_workspace(tmp_path / "demo", plan).directory
    assert load_config(LearnerConfig, directory / "learner.toml", environ={}).training.mode == (
        "async"
    )
    agent = load_config(AgentConfig, directory / "device-0.toml", environ={})
    assert agent.mode == "trajectories"


def test_the_bound_of_the_lag_is_that_of_gradients(tmp_path: Path) -> None:
    plan = make_plan(flags(max_lag=7))
    directory = make_workspace(tmp_path / "demo", plan).directory
    learner = load_config(LearnerConfig, directory / "learner.toml", environ={})
    assert learner.gradients.max_lag == 7
    assert learner.training.max_lag is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lockstep": True}, "--lockstep with --mode gradients"),
        ({"chunk_steps": 8}, "give --update-interval"),
        ({"gradients": False, "update_interval": 8}, "--update-interval goes with --mode"),
        ({"gradients": False, "shards": 2}, "--shards goes with --mode"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(flags(**given))


def test_an_interval_out_of_range_names_its_flag() -> None:
    plan = make_plan(flags(update_interval=0))
    with pytest.raises(ConfigError, match="--update-interval"):
        check_options(DemoOptions(plan, None, 10.0, as_json=False, directory=None))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("training.network.quantization_aware=true",), "quantization_aware"),
        (("training.settings.learning_rate=0.1",), r"gradients\.learning_rate"),
        (("gradients.shard=2",), "did you mean shards"),
        (("gradients.lag_scaling=-1.0",), r"gradients\.lag_scaling"),
    ],
)
def test_what_this_mode_has_not_is_refused_before_anything_starts(
    sets: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    plan = make_plan(flags(sets=sets))
    with pytest.raises(ConfigError, match=message):
        make_workspace(tmp_path / "demo", plan)


def test_the_summary_says_what_became_of_gradients_where_there_were_any() -> None:
    outcome = Outcome("CartPole-v1", "appo", 0, None, End.TIMEOUT, 1.0, 475.0, None, {})
    training = fleet_pb2.Training()
    audit = fleet_pb2.Audit(balanced=True)
    assert "gradients" not in summary(result_envelope(outcome, training, [], audit))
    counts = {"updates_pushed": 1200, "updates_applied": 1198, "updates_refused_non_finite": 2}
    training.counters.update({**counts, "duplicates": 3})
    envelope = result_envelope(outcome, training, [], audit)
    assert envelope["gradients"] == counts
    text = summary(envelope)
    assert "gradients  1,198 applied of 1,200 pushed: 2 refused for non finite" in text
