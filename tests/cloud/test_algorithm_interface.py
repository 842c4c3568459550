"""Algorithms are found by a dotted path, and refused by name before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import Choice, Setup, load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.spaces import Box, Discrete, EnvSpec, unbounded

OURS = "cloud_learner.algorithms"
ALL = ["appo:APPO", "impala:IMPALA", "sac:SAC", "dqn:DQN"]
MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class MySettings:
    step_size: float = 0.1
    n_step: int = 5

class Mine:
    Settings = MySettings
    data = "transitions"

    def __init__(self, setup, settings):
        self.policy = None
        self.updates = 0
        self.settings = settings

    def learn(self, batch): return {}
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_algorithm",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("path", ALL)
def test_every_algorithm_is_found_and_has_defaults(path: str) -> None:
    choice = load_algorithm(f"{OURS}.{path}", {})
    assert choice.data == ("transitions" if path[0] in "sd" else "rollouts")


def test_a_class_of_ones_own_is_found_in_the_current_directory(here: Path) -> None:
    (here / "my_algorithm.py").write_text(MINE)
    choice = load_algorithm("my_algorithm:Mine", {"step_size": 1})
    assert choice.settings.step_size == 1.0  # type: ignore[attr-defined]
    spec = EnvSpec("Test-v0", unbounded((4,)), Discrete(2))
    assert choice.build(Setup(spec, NetworkConfig(), 0)).updates == 0


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ("    Settings = MySettings\n", "'Settings'"),
        ('    data = "transitions"\n', "'data'"),
        ("        self.policy = None\n", "'policy'"),
        ("        self.updates = 0\n", "'updates'"),
        ("    def learn(self, batch): return {}\n", "'learn'"),
        ("    def state_dict(self): return {}\n", "'state_dict'"),
        ("    def load_state_dict(self, state): pass\n", "'load_state_dict'"),
    ],
)
def test_what_a_class_lacks_is_refused_by_name(here: Path, lacks: str, named: str) -> None:
    assert lacks in MINE
    (here / "my_algorithm.py").write_text(MINE.replace(lacks, ""))
    with pytest.raises(ConfigError, match=named) as caught:
        load_algorithm("my_algorithm:Mine", {})
    assert "my_algorithm:Mine" in str(caught.value)


@pytest.mark.parametrize("path", ["appo:PPO", "no.such.module:APPO", ":APPO", "builtins:len"])
def test_a_path_that_names_no_algorithm_is_a_clear_error(path: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.algorithm"):
        load_algorithm(f"{OURS}.{path}" if path.startswith("appo") else path, {})


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("appo:APPO", {"gama": 0.9}, r"training\.settings\.gama.*did you mean gamma"),
        ("appo:APPO", {"gamma": 1.5}, r"training\.settings\.gamma = 1\.5 .* 0 to 1"),
        ("appo:APPO", {"clip": 0.0}, r"training\.settings\.clip = 0\.0"),
        ("appo:APPO", {"value_loss": "l1"}, r"training\.settings\.value_loss = 'l1'"),
        ("appo:APPO", {"epochs": 0}, r"training\.settings\.epochs = 0"),
        ("appo:APPO", {"epochs": 1.5}, r"training\.settings\.epochs = 1\.5.*int"),
        ("impala:IMPALA", {"clip": 0.2}, r"unknown key training\.settings\.clip"),
        ("impala:IMPALA", {"rho_bar": -1.0}, r"training\.settings\.rho_bar"),
        ("sac:SAC", {"tau": 0.0}, r"training\.settings\.tau = 0\.0"),
        ("sac:SAC", {"n_step": 0}, r"training\.settings\.n_step = 0"),
        ("dqn:DQN", {"epsilon_final": 1.1}, r"training\.settings\.epsilon_final"),
        ("dqn:DQN", {"priority_alpha": 2.0}, r"training\.settings\.priority_alpha"),
        ("dqn:DQN", {"learning_rate": -1.0}, r"training\.settings\.learning_rate"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_key_value_and_what_is_allowed(
    path: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_algorithm(f"{OURS}.{path}", settings)
    assert "\n" not in str(caught.value)


def test_variables_reach_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "learner.toml"
    path.write_text(
        'fleet = "demo"\nidentity = "k"\nstate_dir = "s"\n[training.settings]\nclip = 0.3\n'
    )
    environ = {
        "SHOAL_TRAINING__SETTINGS__CLIP": "0.1",
        "SHOAL_TRAINING__SETTINGS__VALUE_LOSS": "mse",
    }
    training = load_config(LearnerConfig, path, environ=environ).training
    settings = load_algorithm(training.algorithm, training.settings).settings
    assert isinstance(settings, APPO.Settings)
    assert (settings.clip, settings.value_loss) == (0.1, "mse")


@pytest.mark.parametrize("name", ["lstm", "attention"])
@pytest.mark.parametrize("path", ["sac:SAC", "dqn:DQN"])
def test_what_an_algorithm_cannot_act_in_is_refused_when_the_spaces_are_known(
    path: str, name: str
) -> None:
    choice: Choice = load_algorithm(f"{OURS}.{path}", {})
    box = unbounded((2,))
    with pytest.raises(ConfigError):
        choice.build(Setup(EnvSpec("Test-v0", box, box), NetworkConfig(), 0))
    bounded = Box(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
    action = Discrete(2) if path == "dqn:DQN" else bounded
    with pytest.raises(ConfigError, match=r"no memory.*training\.network\.kind"):
        choice.build(Setup(EnvSpec("Test-v0", box, action), NetworkConfig(kind=name), 0))
