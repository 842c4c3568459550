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
