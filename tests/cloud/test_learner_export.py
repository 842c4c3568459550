"""`shoal learner export`: files that others run and read, from a state directory or a server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import minari
import numpy as np
import onnxruntime
import pytest
import torch
from learner_state import FLEET, ShortRun, short_run
from numpy.typing import NDArray

from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import NetworkConfig
from cloud_learner.downlink.parameter_server import ParameterServer
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.signing import load_signing_key
from cloud_learner.journal.export import DATASET
from cloud_learner.serving.grpc_server import GrpcServer
from cloud_learner.training.checkpoint import CheckpointStore, newest_checkpoint
from shoal.identity import Identity
from shoalctl.cli import run
from shoalctl.pki.pki import FleetPki, Role

LSTM = {"training.network": 'kind = "lstm"\nhidden = [16]\nmemory = 8'}
FP32 = {"training": "kl_quantization_max = 1e-12"}
ROWS = 5


def export(made: ShortRun, out: Path, *more: str, config: bool = True) -> int:
    whose = ["--config", str(made.config)] if config else ["--state", str(made.state.directory)]
    return run(["learner", "export", *whose, "-o", str(out), *more])


Floats = NDArray[np.float32]


def outputs(path: Path, observations: Floats) -> Floats:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {"observation": observations}
    for port in session.get_inputs():
        if port.name != "observation":
            feeds[port.name] = np.zeros((len(observations), port.shape[1]), np.float32)
    (distribution,) = session.run(["distribution"], feeds)
    return cast("Floats", distribution)


def observations_of(made: ShortRun) -> Floats:
    shape = made.brain.learner.policy.observation.shape
    return np.random.default_rng(0).normal(0, 0.3, (ROWS, *shape)).astype(np.float32)


def test_fp32_is_what_was_trained_and_int8_is_close_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    assert export(made, tmp_path / "int8.onnx") == 0
    assert export(made, tmp_path / "fp32.onnx", "--precision", "fp32") == 0
    said = capsys.readouterr().err.splitlines()
    assert "policy v2, 10 updates, as published, int8" in said[0]
    assert "the newest checkpoint, 10 updates (policy v2 is of 10), fp32" in said[1]
    rows = observations_of(made)
    with torch.no_grad():
        trained = made.brain.learner.policy(torch.from_numpy(rows)).numpy()
    fp32 = outputs(tmp_path / "fp32.onnx", rows)
    np.testing.assert_allclose(fp32, trained, rtol=1e-4, atol=1e-5)
    int8 = outputs(tmp_path / "int8.onnx", rows)
    np.testing.assert_allclose(int8, trained, atol=0.5)
    assert not np.array_equal(fp32, int8)


def test_a_policy_that_remembers_keeps_its_state_outside(tmp_path: Path) -> None:
    made = short_run(
        tmp_path, env_id="examples.cartpole_positions:CartPolePositions", training=LSTM
    )
    for precision in ("int8", "fp32"):
        path = tmp_path / f"{precision}.onnx"
        assert export(made, path, "--precision", precision) == 0
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert {port.name for port in session.get_inputs()} == {"observation", "noise", "state"}
        assert "next_state" in {port.name for port in session.get_outputs()}


def test_an_older_version_is_exported_as_it_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    assert export(made, tmp_path / "v1.onnx", "--version", "1", config=False) == 0
    assert "policy v1, 0 updates" in capsys.readouterr().err
    assert export(made, tmp_path / "v2.onnx", config=False) == 0
    assert export(made, tmp_path / "latest.onnx", "--version", "latest", config=False) == 0
    assert (tmp_path / "latest.onnx").read_bytes() == (tmp_path / "v2.onnx").read_bytes()
    capsys.readouterr()
    assert export(made, tmp_path / "x.onnx", "--version", "v0", config=False) == 4
    assert "'v0' is no policy version" in capsys.readouterr().err
    rows = observations_of(made)
    assert not np.array_equal(
        outputs(tmp_path / "v1.onnx", rows), outputs(tmp_path / "v2.onnx", rows)
    )


def test_what_was_published_in_fp32_needs_no_checkpoint(tmp_path: Path) -> None:
    made = short_run(tmp_path, training=FP32)
    out = tmp_path / "v1.onnx"
    assert export(made, out, "--version", "1", "--precision", "fp32", config=False) == 0


def test_the_checkpoint_says_of_which_network_it_is(tmp_path: Path) -> None:
    made = short_run(tmp_path, training={"training.network": "hidden = [24, 8]"}, chunks=1)
    for name, config in (("given", True), ("said", False)):
        out = tmp_path / f"{name}.onnx"
        assert export(made, out, "--precision", "fp32", config=config) == 0
    rows = observations_of(made)
    np.testing.assert_array_equal(
        outputs(tmp_path / "said.onnx", rows), outputs(tmp_path / "given.onnx", rows)
    )


@pytest.mark.parametrize(
    ("recipe", "part"),
    [
        (None, "does not say of which network"),
        (Recipe("mine:Own", {}, NetworkConfig()), "mine:Own, which is not Shoal's own"),
    ],
)
def test_a_checkpoint_that_does_not_say_or_names_code_of_others_needs_the_configuration(
    recipe: Recipe | None, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=1)
    newest = newest_checkpoint(made.state.checkpoints)
    assert newest is not None
    CheckpointStore(made.state.checkpoints).save(replace(newest, recipe=recipe))
    out = tmp_path / "fp32.onnx"
    assert export(made, out, "--precision", "fp32", config=False) == 4
    said = capsys.readouterr().err
    assert part in said
    assert "--config" in said
    assert export(made, out, "--precision", "fp32") == 0


@pytest.mark.parametrize(
    ("training", "more", "config", "code", "part"),
    [
        ({}, ("--version", "7"), True, 1, "from 1 to 2 is 2"),
        ({}, ("--version", "1", "--precision", "fp32"), True, 1, "its fp32 weights are gone"),
        (FP32, (), True, 1, "give --precision fp32"),
    ],
)
def test_what_is_not_there_is_one_line_that_says_what_to_do(
    training: dict[str, str],
    more: tuple[str, ...],
    config: bool,  # noqa: FBT001 a parameter
    code: int,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = short_run(tmp_path, training=training, chunks=1)
    assert export(made, tmp_path / "out.onnx", *more, config=config) == code
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert part in captured.err
    assert not (tmp_path / "out.onnx").exists()


def test_a_running_learner_hands_out_what_it_published_and_signed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    learner = Identity.load(pki.issue("learner", Role.LEARNER))
    operator = pki.issue("operator", Role.OPERATOR)
    key = load_signing_key(learner)
    made = short_run(tmp_path, chunks=1, signing_key=key)

    async def fetch(out: Path, *more: str, identity: Path = operator) -> int:
        with PolicyLog(made.state.policies, key, FLEET) as log:
            server = ParameterServer(log, fleet=FLEET)
            server.announce(made.published[-1])
            async with GrpcServer("127.0.0.1", 0, learner, (server,)) as endpoint:
                whose = ["--server", f"localhost:{endpoint.port}", "--identity", str(identity)]
                words = ["learner", "export", "-o", str(out), *whose, *more]
                return await asyncio.to_thread(run, words)

    assert asyncio.run(fetch(tmp_path / "served.onnx")) == 0
    assert export(made, tmp_path / "read.onnx", config=False) == 0
    rows = observations_of(made)
    served, read = (outputs(tmp_path / f"{name}.onnx", rows) for name in ("served", "read"))
    np.testing.assert_array_equal(served, read)
    capsys.readouterr()
    assert asyncio.run(fetch(tmp_path / "x.onnx", "--version", "9")) == 1
    assert "policy version 9 is not here" in capsys.readouterr().err
    assert asyncio.run(fetch(tmp_path / "x.onnx", "--precision", "fp32")) == 1
    assert "published in int8" in capsys.readouterr().err
    stranger = FleetPki.create(tmp_path / "other", FLEET).issue("operator", Role.OPERATOR)
    (stranger / "ca.pem").write_bytes((operator / "ca.pem").read_bytes())
    assert asyncio.run(fetch(tmp_path / "x.onnx", identity=stranger)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (operator / "policy.pub").write_bytes((stranger / "policy.pub").read_bytes())
    assert asyncio.run(fetch(tmp_path / "x.onnx")) == 1
    assert "signature" in capsys.readouterr().err
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "give --state, --config or --server"),
        (("--server", "localhost:1"), "--identity"),
        (("--server", "localhost:1", "--format", "minari"), "--state"),
    ],
)
def test_whose_policy_is_meant_has_to_be_said(
    arguments: tuple[str, ...],
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SHOAL_OPERATOR_IDENTITY", raising=False)
    assert run(["learner", "export", "-o", str(tmp_path / "out"), *arguments]) == 4
    assert part in capsys.readouterr().err


def test_the_journal_becomes_a_dataset_of_whole_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = short_run(tmp_path, chunks=10)
    out = tmp_path / "data"
    assert export(made, out, "--format", "minari", config=False) == 0
    said = capsys.readouterr().err
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(out))
    dataset = minari.load_dataset(DATASET)
    assert f"{dataset.total_episodes} episodes, {dataset.total_steps} steps" in said
    assert dataset.total_episodes > 5
    for episode in dataset.iterate_episodes():
        assert len(episode.observations) == len(episode.rewards) + 1
        assert bool(episode.terminations[-1]) != bool(episode.truncations[-1])
        # CartPole itself, from the first observation on, does what the dataset says.
        fell = abs(episode.observations[:, 2]) > 12 * 2 * np.pi / 360
        left = abs(episode.observations[:, 0]) > 2.4
        assert (fell | left).tolist() == [False] * len(episode.rewards) + [True]
    assert export(made, out, "--format", "minari", config=False) == 4
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("-o", "x.onnx", "--state", "nowhere"), "no policies here"),
        (("-o", "x", "--state", "nowhere", "--format", "minari"), "no checkpoint"),
    ],
)
def test_a_state_directory_that_is_missing_is_a_bad_argument(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    more: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["learner", "export", *more]) == 4
    assert part in capsys.readouterr().err


def test_a_directory_to_write_to_that_is_missing_is_a_bad_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=1)
    assert export(made, tmp_path / "nowhere" / "x.onnx") == 4
    assert "give another --out" in capsys.readouterr().err
