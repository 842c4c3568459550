"""What `shoal bench actor --policy` makes of a policy: its forms, and how far they are apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from bench import policy_forms
from bench.actor import main
from bench.precisions import divergence
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from learner_state import FLEET, ShortRun, short_run
from networks import ACTIONS

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.models.heads import distribution_of
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import PrecisionChooser
from shoal.layout import ActionLayout
from shoal.spaces import Space
from shoalctl.cli import run

FEW = ("--calls", "50", "--rows", "64", "--envs", "2", "-o", "json")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FORMS = {"fp32", "int8 static", "int8 dynamic"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    return short_run(tmp_path_factory.mktemp("learner"), signing_key=KEY)


@pytest.fixture(scope="module")
def files(made: ShortRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("files")
    found = {}
    for precision in ("int8", "fp32"):
        path: Path = directory / f"{precision}.onnx"
        whose = ["--config", str(made.config), "-o", str(path)]
        assert run(["learner", "export", *whose, "--precision", precision]) == 0
        found[precision] = str(path)
    return found


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    """The lines for one observation, by form."""
    capsys.readouterr()
    assert main([*arguments, *FEW]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.BenchPrecisions"
    found = cast("list[dict[str, object]]", envelope["precisions"])
    assert {line["envs"] for line in found} == {1, 2}
    return {str(line["precision"]): line for line in found if line["envs"] == 1}


def made_of(lines: dict[str, dict[str, object]]) -> set[str]:
    return {name for name, line in lines.items() if line["p50_us"] is not None}


def test_an_exported_int8_policy_is_measured_in_every_form(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = measured(capsys, "--policy", files["int8"])
    assert made_of(lines) == FORMS
    assert (lines["fp32"]["agreement"], lines["fp32"]["kl"]) == (1.0, 0.0)
    for name in ("int8 static", "int8 dynamic"):
        line = lines[name]
        assert cast("float", line["agreement"]) > 0.8
        assert 0.0 < cast("float", line["kl"]) < 0.02
        assert cast("float", line["p99_us"]) >= cast("float", line["p50_us"]) > 0.0


def test_both_files_compare_int8_with_what_was_trained(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = measured(capsys, "--policy", files["int8"], "--policy", files["fp32"])
    assert made_of(lines) == FORMS
    alone = measured(capsys, "--policy", files["int8"])
    assert alone["int8 static"]["kl"] != lines["int8 static"]["kl"]


def test_an_fp32_file_has_no_static_form_and_says_so(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = measured(capsys, "--policy", files["fp32"])
    assert made_of(lines) == FORMS - {"int8 static"}
    assert "n/a" in str(lines["int8 static"]["note"])


def test_state_directories_of_learners_and_devices_are_read_alike(
    made: ShortRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = made.brain.spec
    chooser = PrecisionChooser("fp32", spec=spec)
    public = KEY.public_key().public_bytes_raw()
    with (
        PolicyLog(made.state.policies, KEY, FLEET) as log,
        PolicyStore(
            tmp_path / "policies", fleet=FLEET, public_key=public, spec=spec, chooser=chooser
        ) as store,
    ):
        store.offer(made.published[-1].bundle, lambda digest: log.graph(digest) or b"")
    env = ("--env", "CartPole-v1")
    ours = measured(capsys, "--state", str(made.state.directory), *env)
    theirs = measured(capsys, "--state", str(tmp_path), *env)
    assert made_of(ours) == made_of(theirs) == FORMS
    assert [line["kl"] for line in ours.values()] == [line["kl"] for line in theirs.values()]


def test_without_onnx_what_needs_it_is_not_available(
    made: ShortRun,
    files: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_forms, "onnx_missing", lambda: True)
    state = measured(capsys, "--state", str(made.state.directory), "--env", "CartPole-v1")
    assert made_of(state) == FORMS - {"int8 dynamic"}
    assert "needs onnx" in str(state["int8 dynamic"]["note"])
    assert made_of(measured(capsys, "--policy", files["int8"])) == {"int8 static"}
    both = measured(capsys, "--policy", files["int8"], "--policy", files["fp32"])
    assert made_of(both) == FORMS - {"int8 dynamic"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--policy", "nowhere.onnx"), "nowhere.onnx: No such file or directory; give a file of"),
        (("--policy", "{state}"), "Is a directory; give a file of `shoal learner export`"),
        (("--state", "{state}"), "give --env"),
        (("--state", "{state}", "--version", "9", "--env", "CartPole-v1"), "v1 to v2"),
        (("--state", "{state}", "--env", "Acrobot-v1"), "other spaces"),
        (("--state", "{state}", "--policy", "{file}"), "one of the two"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: tuple[str, ...],
    part: str,
    made: ShortRun,
    files: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [a.format(state=made.state.directory, file=files["int8"]) for a in arguments]
    assert main([*filled, *FEW]) == 1
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert part in captured.err


@pytest.mark.parametrize("space", list(ACTIONS.values()), ids=list(ACTIONS))
def test_the_divergence_is_that_of_the_learners_distributions(space: Space) -> None:
    action = ActionLayout.of(space)
    family = distribution_of(action)
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 9, family.parameters)).astype(np.float32)
    expected = float(family.kl(torch.from_numpy(ours), torch.from_numpy(theirs)).mean())
    assert divergence(action, ours, theirs, values=False) == pytest.approx(expected, rel=1e-5)
