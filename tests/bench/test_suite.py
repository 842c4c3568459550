"""The pure parts of the suite: rows, records, means over seeds, the file that is gone on with."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench.evaluate import Evaluation, evaluate, loss_of, open_policy
from bench.same_weights import int8_of_checkpoint
from bench.suite import Results, main
from bench.suite_report import lines_of, markdown_of, spread_of, text_of
from bench.suite_rows import CLASSIC, LAG, SUITES, choose
from bench.suite_run import (
    PEER,
    SHOAL,
    RunRecord,
    demo_command,
    peer_command,
    settings_of,
)
from hypothesis import given
from hypothesis import strategies as st
from learner_state import short_run
from onnx import TensorProto, helper

from cloud_learner.downlink.kept_policies import KeptPolicies
from cloud_learner.quantization.session import open_session
from shoal.errors import ShoalError
from shoalctl.demo.presets import Preset

ROW = CLASSIC[0]
EPISODES = 100


def record(seed: int = 0, **fields: object) -> RunRecord:
    blank = RunRecord(ROW.name, SHOAL, seed, settings_of(ROW, SHOAL, EPISODES))
    return replace(
        blank,
        **{  # type: ignore[arg-type]
            "solved": True,
            "solved_steps": 90_000 + 1000 * seed,
            "solved_s": 10.0 + seed,
            "env_steps": 90_000,
            "training_return": 480.0,
            "precision": "int8",
            "evaluation_fp32": Evaluation(500.0, 0.0, EPISODES),
            "evaluation_int8": Evaluation(495.0, 5.0, EPISODES),
            "int8_loss_percent": 1.0,
            "lag": {"p50": 0.0, "p99": 12.0, "max": 24.0},
        }
        | fields,
    )


def of_returns(*returns: float) -> Evaluation:
    return Evaluation(float(np.mean(returns)), float(np.std(returns)), len(returns), returns)


finite = st.floats(-1000.0, 1000.0)


def test_rows_are_chosen_by_name_or_by_what_they_begin_with() -> None:
    assert [row.name for row in choose("classic", ["cartpole"])] == [
        "cartpole-appo",
        "cartpole-gradients",
        "cartpole-dqn",
        "cartpole-dqn-plain",
        "cartpole-dqn-priority",
        "cartpole-impala",
    ]
    assert choose("classic", ["lag-0-int8"]) == [row for row in LAG if row.name == "lag-0-int8"]
    assert choose("classic", ["lag"]) == list(LAG)
    assert choose("classic", []) == list(SUITES["classic"])
    with pytest.raises(ValueError, match="no row 'cart'"):
        choose("classic", ["cart"])


def test_every_row_has_a_name_of_its_own_and_a_bar_in_a_budget() -> None:
    rows = SUITES["classic"]
    assert len({row.name for row in rows}) == len(rows)
    assert len(LAG) == 12
    for row in rows:
        command = demo_command(row)
        assert command[command.index("--until-return") + 1] == f"{row.bar:g}"
        assert command[command.index("--stop-after-steps") + 1] == str(row.steps)
        # Judged by its end, a run has to reach it.
        assert ("--go-on" in command) == (row.judged == "evaluation")


def test_the_same_settings_are_the_same_run_and_others_are_not() -> None:
    assert settings_of(ROW, SHOAL, 100) == settings_of(ROW, SHOAL, 100)
    others = [
        settings_of(ROW, SHOAL, 200),
        settings_of(ROW, PEER, 100),
        settings_of(replace(ROW, bar=400), SHOAL, 100),
        settings_of(replace(ROW, flags=("--max-lag", "1")), SHOAL, 100),
    ]
    assert settings_of(ROW, SHOAL, 100) not in others
    assert len(set(others)) == len(others)


def test_a_run_with_an_earlier_preset_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings_of(ROW, SHOAL, EPISODES)
    monkeypatch.setattr("bench.suite_run.preset_of", lambda *_, **__: Preset(chunk_steps=7))
    assert settings_of(ROW, SHOAL, EPISODES) != before


def test_a_row_of_gradients_is_told_the_preset_of_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in CLASSIC if row.name == "cartpole-gradients")
    assert demo_command(row)[-2:] == ["--mode", "gradients"]
    asked: list[bool] = []

    def preset(_env: str, _algorithm: str, *, gradients: bool = False) -> Preset:
        asked.append(gradients)
        return Preset()

    monkeypatch.setattr("bench.suite_run.preset_of", preset)
    settings_of(row, SHOAL, EPISODES)
    settings_of(ROW, SHOAL, EPISODES)
    assert asked == [True, False]


def test_a_peer_trains_for_the_budget_where_the_end_is_judged() -> None:
    pendulum = next(row for row in CLASSIC if row.name == "pendulum-sac")
    assert "--steps" in peer_command(pendulum, EPISODES)
    assert "--steps" not in peer_command(ROW, EPISODES)


@pytest.mark.parametrize(
    ("fp32", "int8", "percent"),
    [(500.0, 490.0, 2.0), (-150.0, -153.0, 2.0), (-150.0, -147.0, -2.0), (0.0, 0.0, 0.0)],
)
def test_a_loss_is_over_zero_where_int8_is_worse_for_rewards_and_for_costs(
    fp32: float, int8: float, percent: float
) -> None:
    loss = loss_of(of_returns(fp32, fp32), of_returns(int8, int8))
    assert loss is not None
    assert loss.percent == pytest.approx(percent)
    assert loss.error == 0.0


@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=50))
def test_the_error_of_a_loss_is_that_of_the_differences_in_pairs(
    pairs: list[tuple[float, float]],
) -> None:
    ours, theirs = np.array(pairs).T
    loss = loss_of(of_returns(*ours), of_returns(*theirs))
    assert loss is not None
    scale = max(abs(float(ours.mean())), 1e-9) / 100.0
    assert loss.percent * scale == pytest.approx(float((ours - theirs).mean()), abs=1e-6)
    error = float((ours - theirs).std(ddof=1)) / len(pairs) ** 0.5
    assert loss.error * scale == pytest.approx(error, abs=1e-6)


def test_episodes_that_did_not_begin_alike_are_not_compared() -> None:
    assert loss_of(of_returns(1.0, 2.0), of_returns(1.0)) is None
    assert loss_of(Evaluation(500.0, 0.0, 100), Evaluation(490.0, 0.0, 100)) is None


def test_results_are_in_the_file_after_each_run_and_are_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    results = Results.open(path)
    assert not results.has(ROW, SHOAL, 0, EPISODES)
    results.add(record())
    again = Results.open(path)
    assert again.runs == [record()]
    assert again.has(ROW, SHOAL, 0, EPISODES)
    assert not again.has(ROW, SHOAL, 1, EPISODES)
    assert not again.has(ROW, SHOAL, 0, 200)
    assert not again.has(replace(ROW, steps=5), SHOAL, 0, EPISODES)


def test_a_run_without_a_result_is_made_again_and_replaced(tmp_path: Path) -> None:
    results = Results.open(tmp_path / "suite.json")
    results.add(record(error="status 5: a bug"))
    assert not results.has(ROW, SHOAL, 0, EPISODES)
    results.add(record())
    assert results.runs == [record()]


def test_another_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"schema": "shoal.v1.BenchLearn"}')
    with pytest.raises(SystemExit):
        main(["--suite", "classic", "--seeds", "0", "--out", str(path)])
    assert json.loads(path.read_text()) == {"schema": "shoal.v1.BenchLearn"}


def test_a_mean_over_seeds_leaves_out_what_was_not_measured() -> None:
    spread = spread_of([1.0, None, 3.0])
    assert spread is not None
    assert (spread.mean, spread.count) == (2.0, 2)
    assert spread.std == pytest.approx(np.std([1.0, 3.0], ddof=1))
    assert spread.text() == "2.0 ± 1.4"
    assert spread_of([None]) is None
    one = spread_of([7.0])
    assert one is not None
    assert one.text(0) == "7"


def test_tables_show_a_row_beside_what_was_published_and_its_peer() -> None:
    peer = replace(
        record(),
        contestant=PEER,
        settings=settings_of(ROW, PEER, EPISODES),
        evaluation_int8=None,
        int8_loss_percent=None,
        lag={},
    )
    runs = [record(0), record(1, solved=False), record(2, error="killed"), peer]
    lines = lines_of(SUITES["classic"], runs)
    assert [(len(line.shoal), len(line.peer)) for line in lines] == [(2, 1)]
    text = text_of(lines)
    assert "1 of 2" in text
    assert "500 (PPO)" in text
    table = markdown_of(lines).splitlines()
    assert table[0].startswith("|  | bar | reached |")
    assert len({line.count("|") for line in table}) == 1
    assert "CartPole-v1, APPO" in table[2]
    assert "0/12/24" in table[2]


def test_runs_with_other_settings_are_not_in_the_same_line() -> None:
    runs = [record(0), record(1, settings=settings_of(ROW, SHOAL, 200))]
    (line,) = lines_of([ROW], runs)
    assert line.shoal == [runs[0]]
    (line,) = lines_of([ROW], runs, episodes=200)
    assert line.shoal == [runs[1]]


def test_a_loss_comes_with_its_error_where_every_run_has_its_episodes() -> None:
    fp32, int8 = of_returns(*[500.0] * 4), of_returns(500.0, 500.0, 400.0, 500.0)
    kept = {"evaluation_fp32": fp32, "evaluation_int8": int8, "int8_loss_percent": 5.0}
    cells = markdown_of(lines_of([ROW], [record(0, **kept), record(1, **kept)])).splitlines()[2]
    assert "| 5.00 ± 0.00 % | 3.54 % |" in cells  # 25 of 500 each, over the root of two
    cells = markdown_of(lines_of([ROW], [record(0, **kept), record(1)])).splitlines()[2]
    assert "| - |" in cells


def test_without_a_run_there_is_nothing_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", "lag", "--seeds", "0"]) == 1
    assert "no run yet" in capsys.readouterr().out


def write_policy(path: Path) -> None:
    """Pushes the cart of CartPole towards where the pole leans, whatever the noise."""
    weight = np.array([[0.0], [0.1], [1.0], [0.5]], np.float32)
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["lean"]),
        helper.make_node("Greater", ["lean", "zero"], ["right"]),
        helper.make_node("Cast", ["right"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Squeeze", ["wide", "axis"], ["action"]),
        helper.make_node("ReduceSum", ["noise", "axis"], ["log_prob"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["N", 2]),
        ],
        [
            helper.make_tensor_value_info("action", TensorProto.INT64, ["N"]),
            helper.make_tensor_value_info("log_prob", TensorProto.FLOAT, ["N"]),
        ],
        [
            onnx.numpy_helper.from_array(weight, "weight"),
            onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero"),
            onnx.numpy_helper.from_array(np.array([1], np.int64), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())


def test_an_evaluation_is_of_the_policy_alone_and_comes_out_the_same_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policy.onnx"
    write_policy(path)
    found = evaluate(open_policy(path), "CartPole-v1", episodes=20)
    assert found.updates is None
    assert found.episodes == len(found.returns) == 20
    assert found.mean > 100  # random actions get 20
    assert evaluate(open_policy(path), "CartPole-v1", episodes=20) == found


def test_an_episode_begins_alike_however_many_are_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    write_policy(path)
    session = open_policy(path)
    many = evaluate(session, "CartPole-v1", episodes=20)
    assert evaluate(session, "CartPole-v1", episodes=5).returns == many.returns[:5]


@pytest.mark.parametrize("algorithm", ["appo:APPO", "dqn:DQN"])
def test_a_checkpoint_in_int8_acts_as_the_version_that_was_published_of_it(
    algorithm: str, tmp_path: Path
) -> None:
    training = {"training": f'algorithm = "cloud_learner.algorithms.{algorithm}"'}
    made = short_run(tmp_path, training=training)
    session = int8_of_checkpoint(made.config)
    kept = KeptPolicies(made.state.policies)
    published = kept.read(kept.versions()[-1])
    assert published.manifest.precision == "int8"
    width = session.get_inputs()[1].shape[-1]
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    asked = {"observation": rows, "noise": np.zeros((64, width), np.float32)}
    (ours,) = session.run(["distribution"], asked)
    (theirs,) = open_session(published.graph, published.tensors).run(["distribution"], asked)
    # What all actions have in common decides nothing.
    apart = (ours - ours.mean(-1, keepdims=True)) - (theirs - theirs.mean(-1, keepdims=True))
    np.testing.assert_allclose(apart, 0.0, atol=0.05)


def test_without_a_checkpoint_there_is_nothing_to_round(tmp_path: Path) -> None:
    made = short_run(tmp_path)
    for checkpoint in made.state.checkpoints.iterdir():
        checkpoint.unlink()
    with pytest.raises(ShoalError, match="no checkpoint"):
        int8_of_checkpoint(made.config)


def test_a_record_survives_its_file() -> None:
    assert RunRecord.from_json(json.loads(json.dumps(asdict(record())))) == record()
