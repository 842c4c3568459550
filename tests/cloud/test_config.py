from __future__ import annotations

from pathlib import Path

import pytest

from cloud_learner.config import LearnerConfig
from shoal.config import load_config
from shoal.errors import ConfigError

MINIMAL = 'fleet = "demo"\nidentity = "keys"\nstate_dir = "state"\n'


def load(tmp_path: Path, text: str = "", **environ: str) -> LearnerConfig:
    path = tmp_path / "learner.toml"
    path.write_text(MINIMAL + text)
    return load_config(LearnerConfig, path, environ=environ)


def test_three_keys_are_enough_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.state_dir == tmp_path / "state"
    assert config.broker.port == 8883


def test_every_table_can_be_given(tmp_path: Path) -> None:
    text = """
    [broker]
    host = "broker.farm"
    [training]
    max_lag = -1
    [training.network]
    hidden = [32, 16]
    [training.settings]
    gamma = 0.9
    learning_rate = 1e-4
    [journal]
    retain_bytes = 0
    """
    config = load(tmp_path, text)
    assert config.broker.host == "broker.farm"
    assert config.training.network.hidden == (32, 16)
    assert config.training.settings == {"gamma": 0.9, "learning_rate": 1e-4}
    assert config.training.max_lag == -1
    assert config.journal.retain_bytes == 0


def test_tasks_are_an_array_of_tables_and_a_mistake_names_its_key(tmp_path: Path) -> None:
    text = """
    [dispatch]
    lease_s = 600
    [[tasks]]
    name = "pole"
    env_kwargs = { sutton_barto_reward = true }
    first_seed = 0
    seeds = 8
    episodes = 50
    [[tasks]]
    name = "long"
    steps = 10_000
    stage = 1
    """
    config = load(tmp_path, text)
    assert [(task.name, task.seeds, task.stage) for task in config.tasks] == [
        ("pole", 8, 0),
        ("long", 1, 1),
    ]
    assert config.dispatch.lease_s == 600
    with pytest.raises(ConfigError, match=r"tasks.*episode.*did you mean episodes"):
        load(tmp_path, '[[tasks]]\nname = "a"\nepisode = 3\n')


def test_variables_override_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, "seed = 3\n", SHOAL_SEED="4", SHOAL_TRAINING__MAX_LAG="7")
    assert (config.seed, config.training.max_lag) == (4, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[broker]\nprot = 1\n", r"broker\.prot.*did you mean port"),
        ("[broker]\nport = 0\n", r"broker\.port = 0 .* from 1 to 65535"),
        ("[server]\nport = 70000\n", r"server\.port = 70000"),
        ("[broker]\nbackoff_base_s = 9.0\n", r"broker\.backoff_base_s = 9\.0"),
        ("[broker]\nkeepalive_s = 0\n", r"broker\.keepalive_s"),
        ("[ingest]\nmax_batch_messages = 0\n", r"ingest\.max_batch_messages = 0"),
        ("[journal]\nmax_file_bytes = 10\n", r"journal\.max_file_bytes = 10"),
        ("[training]\nreplay_steps = 3\n", r"training\.replay_steps = 3 .*batch_steps \(2048\)"),
        ("[training.network]\nhidden = []\n", r"training\.network\.hidden = \(\)"),
        ("[training]\nmax_lag = -2\n", r"training\.max_lag = -2 .*-1 for unbounded"),
        ('[training]\nmode = "later"\n', r"training\.mode = 'later'.*'lockstep'"),
        ("[training]\nlockstep_devices = 0\n", r"training\.lockstep_devices = 0"),
        ('[training]\nalgorithm = "appo"\n', r"training\.algorithm = 'appo' .*module:Class"),
        ("seed = -1\n", r"seed = -1"),
        ("policies_kept = 1\n", r"policies_kept = 1"),
        ("checkpoint_interval_s = -1.0\n", r"checkpoint_interval_s = -1\.0"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "learner.toml" in str(caught.value)
