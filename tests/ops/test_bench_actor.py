"""What `shoal bench actor --policy` makes of a policy: its forms, and how far they are apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from learner_state import FLEET, ShortRun, short_run
from networks import ACTIONS

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.models.heads import distribution_of
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.precision import PrecisionChooser
from edge_agent.precisions.comparison import divergence
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
    assert run(["bench", "actor", *arguments, *FEW]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.BenchPrecisions"
    found = cast("list[dict[str, object]]", envelope["precisions"])
    assert {line["envs"] for line in found} == {1, 2}
    return {str(line["precision"]): line for line in found if line["envs"] == 1}


def made_of(lines: dict[str, dict[str, object]]) -> set[str]:
    return {name for name, line in lines.items() if line["p50_us"] is not None}


def device_state(made: ShortRun, directory: Path) -> None:
    """The state_dir of a device that took the newest version."""
    spec = made.brain.spec
    chooser = PrecisionChooser("fp32", spec=spec)
    public = KEY.public_key().public_bytes_raw()
    with (
        PolicyLog(made.state.policies, KEY, FLEET) as log,
        PolicyStore(
            directory / "policies", fleet=FLEET, public_key=public, spec=spec, chooser=chooser
        ) as store,
    ):
        store.offer(made.published[-1].bundle, lambda digest: log.graph(digest) or b"")


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
    device_state(made, tmp_path)
    env = ("--env", "CartPole-v1")
    ours = measured(capsys, "--state", str(made.state.directory), *env)
    theirs = measured(capsys, "--state", str(tmp_path), *env)
    assert made_of(ours) == made_of(theirs) == FORMS
    assert [line["kl"] for line in ours.values()] == [line["kl"] for line in theirs.values()]


def test_a_device_without_torch_and_onnx_measures_every_form(
    files: dict[str, str], made: ShortRun
) -> None:
    """In a process that has neither, nor the checkout's tests."""
    code = (
        "import sys; sys.modules.update(torch=None, onnx=None, tensorboard=None, bench=None)\n"
        "from shoalctl.cli import main; main(sys.argv[1:])"
    )
    for whose in (
        ("--policy", files["int8"]),
        ("--state", str(made.state.directory), "--env", "CartPole-v1"),
    ):
        result = subprocess.run(
            [sys.executable, "-c", code, "bench", "actor", *whose, *FEW],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert result.returncode == 0, result.stderr
        lines = json.loads(result.stdout)["precisions"]
        assert {line["precision"] for line in lines if line["p50_us"] is not None} == FORMS


def test_what_a_device_is_configured_for_is_measured_and_nothing_is_written(
    made: ShortRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device_state(made, tmp_path)
    config = tmp_path / "agent.toml"
    text = f'fleet = "{{fleet}}"\nidentity = "nowhere"\nstate_dir = "{tmp_path}"\n'
    env = '[env]\nid = "{id}"\nnum_envs = 2\n'
    config.write_text(text.format(fleet=FLEET) + env.format(id="CartPole-v1"))
    before = sorted(tmp_path.rglob("*"))
    stamps = [path.stat().st_mtime_ns for path in before]
    lines = measured(capsys, "--config", str(config))
    assert made_of(lines) == FORMS
    assert sorted(tmp_path.rglob("*")) == before
    assert [path.stat().st_mtime_ns for path in before] == stamps
    config.write_text(text.format(fleet=FLEET) + env.format(id="rover:make"))
    assert run(["bench", "actor", "--config", str(config), *FEW]) == 4
    assert "may be hardware" in capsys.readouterr().err
    config.write_text(text.format(fleet="other") + env.format(id="CartPole-v1"))
    assert run(["bench", "actor", "--config", str(config), *FEW]) == 4
    assert "no policy here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--policy", "nowhere.onnx"), 4, "nowhere.onnx"),
        (("--policy", "{directory}"), 4, "is a directory"),
        (("--policy", "{text}"), 1, "is no ONNX model"),
        (("--state", "{directory}", "--env", "CartPole-v1"), 4, "no policy here"),
        (("--state", "{state}"), 4, "give --env"),
        (("--state", "{state}", "--version", "9", "--env", "CartPole-v1"), 4, "v1 to v2"),
        (("--state", "{state}", "--env", "Acrobot-v1"), 1, "other spaces"),
        (("--state", "{state}", "--policy", "{file}"), 4, "one of them"),
        (("--policy", "{file}", "--version", "1"), 4, "--version goes with"),
        (("--policy", "{file}", "--rows", "0"), 4, "use 1 to"),
        (("--policy", "{file}", "--colour"), 4, "--colour"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: tuple[str, ...],
    code: int,
    part: str,
    made: ShortRun,
    files: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    empty = tmp_path / "empty"
    empty.mkdir()
    names = {"state": made.state.directory, "file": files["int8"], "text": text}
    filled = [a.format(**names, directory=empty) for a in arguments]
    assert run(["bench", "actor", *FEW, *filled]) == code
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
