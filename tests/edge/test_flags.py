"""What is typed becomes keys of the configuration, and a mistake names its flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_agent.command.flags import keyword_arguments, overrides, set_flags
from shoal.errors import ConfigError

NONE: dict[str, Any] = dict.fromkeys(
    (
        *("fleet", "identity", "state_dir", "env", "num_envs", "seed", "broker", "server"),
        "settings",
    )
)


def test_only_what_was_typed_is_a_key_and_paths_are_absolute(tmp_path: Path) -> None:
    assert overrides(**NONE) == {}
    found = overrides(**NONE | {"env": "CartPole-v1", "identity": Path("keys"), "num_envs": 0})
    assert {key: flag.value for key, flag in found.items()} == {
        "env.id": "CartPole-v1",
        "env.num_envs": 0,
        "identity": Path("keys").absolute(),
    }


def test_an_address_is_two_keys_and_goes_before_set() -> None:
    typed = {"server": "[::1]:50051", "settings": ["parameter_server.port=1", "actor.seed=3"]}
    found = overrides(**NONE | typed)
    assert {key: (flag.name, flag.value) for key, flag in found.items()} == {
        "parameter_server.host": ("--server", "::1"),
        "parameter_server.port": ("--server", 50051),
        "actor.seed": ("--set actor.seed", 3),
    }


def test_values_are_of_toml_and_what_is_none_is_text() -> None:
    given = ["a=1", "b=1.5", "c=true", "d=[1, 2]", "e=rgb_array", "f=x=y"]
    wanted = {"a": 1, "b": 1.5, "c": True, "d": [1, 2], "e": "rgb_array", "f": "x=y"}
    assert keyword_arguments(given) == wanted
    assert {key: flag.value for key, flag in set_flags(given).items()} == wanted


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--kwargs .* give KEY=VALUE"):
        keyword_arguments([text])
    with pytest.raises(ConfigError, match=r"--set .* give KEY=VALUE"):
        set_flags([text])
