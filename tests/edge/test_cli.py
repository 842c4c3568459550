"""`shoal agent`: what its flags say, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoalctl.cli import run

CONFIG = """
fleet = "pond"
identity = "nobody"
state_dir = "state"
[env]
id = "CartPole-v1"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ("--set", "gradients.update_interval=0"),
            "--set gradients.update_interval: gradients.update_interval is 0",
        ),
        (("--set", "mode=gradient"), "it must be one of 'trajectories', 'gradients'"),
        (("--mode", "gradient"), "--mode: mode = 'gradient'"),
        (("--update-interval", "8"), "add --mode gradients"),
        (("--set", "mode=gradients", "--update-interval", "0"), "--update-interval: gradients."),
    ],
)
def test_what_a_flag_says_of_gradients_is_never_passed_over(
    config: str, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], complaint: str
) -> None:
    assert run(["agent", "run", "--config", config, *flags]) == 4
    assert complaint in capsys.readouterr().err


def test_a_flag_of_its_own_wins_over_set(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--set", "mode=gradient", "--mode", "trajectories")
    assert run(["agent", "run", "--config", config, *flags]) == 4
    assert "nobody" in capsys.readouterr().err  # the identity, which comes after the configuration


def test_without_a_configuration_a_file_is_hinted_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "check"]) == 4
    assert "fleet is missing; it must be given, in a file: --config FILE" in capsys.readouterr().err
    assert run(["relay", "check"]) == 4
    assert "--config FILE" in capsys.readouterr().err


def test_an_environment_that_is_not_there_is_a_bad_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["agent", "check", "nope-v1"]) == 4
    said = capsys.readouterr().out
    assert "nope-v1" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    "flag", [("--precision", "fp32"), ("--version", "3"), ("--deterministic",)]
)
def test_what_is_of_a_policy_does_not_go_with_the_journal(
    flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["learner", "export", "--format", "minari", "--state", "none", "-o", "out", *flag]
    assert run(export) == 4
    assert f"{flag[0]} is of a policy" in capsys.readouterr().err
