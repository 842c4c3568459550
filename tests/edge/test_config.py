"""What an operator may write, and what they are told when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoal.errors import ConfigError

LEAST = """
fleet = "pond"
identity = "id"
state_dir = "state"
[env]
id = "CartPole-v1"
"""


def _load(tmp_path: Path, text: str, **environ: str) -> AgentConfig:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load_config(AgentConfig, path, environ=environ)


def test_the_least_one_must_say_is_fleet_identity_state_and_environment(tmp_path: Path) -> None:
    config = _load(tmp_path, LEAST)
    assert config.identity == tmp_path / "id"
    assert config.spool_path.parent == config.policies_dir.parent == tmp_path / "state"
    assert (config.env.id, config.env.num_envs, config.actor.chunk_steps) == ("CartPole-v1", 1, 64)


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    config = _load(tmp_path, LEAST, SHOAL_BROKER__PORT="1234", SHOAL_ENV__NUM_ENVS="8")
    assert (config.broker.port, config.env.num_envs) == (1234, 8)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("[broker]\nprot = 1", r"unknown key broker\.prot; did you mean port"),
        ("[broker]\nport = 0", r"broker\.port is 0: give a value between 1 and 65535"),
        ('[broker]\nhost = ""', r"broker\.host is empty"),
        ("[broker]\nwindow_chunks = 0", r"broker\.window_chunks is 0"),
        ("[broker]\nack_timeout_s = nan", r"broker\.ack_timeout_s is nan"),
        ("[parameter_server]\nport = 99999", r"parameter_server\.port is 99999"),
        ("[actor]\nchunk_steps = 0", r"actor\.chunk_steps is 0"),
        ("[actor]\ncontrol_hz = -1", r"actor\.control_hz is -1"),
        ('[actor]\nbefore_policy = "guess"', r"actor\.before_policy"),
        ("[actor]\nsafe_action = [inf]", r"actor\.safe_action"),
        ('[actor]\nprecision = "int4"', r"actor\.precision"),
        ("[spool]\nmax_bytes = 10", r"spool\.max_bytes is 10"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    tmp_path: Path, more: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _load(tmp_path, LEAST + more)


def test_a_fleet_must_have_a_name_that_topics_can_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fleet"):
        _load(tmp_path, LEAST.replace('"pond"', '"My Pond"'))


def test_an_environment_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env\.id is empty"):
        _load(tmp_path, LEAST.replace('"CartPole-v1"', '" "'))
