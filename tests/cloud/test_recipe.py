"""What training is made with travels as plain JSON, and names what differs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import NetworkConfig
from shoal.errors import ConfigError, WireError

APPO = "cloud_learner.algorithms.appo:APPO"
SAC = "cloud_learner.algorithms.sac:SAC"
KINDS = ("auto", "mlp", "cnn", "lstm", "attention", "mine:torso")

networks = st.builds(
    NetworkConfig,
    kind=st.sampled_from(KINDS),
    hidden=st.lists(st.integers(1, 512), min_size=1, max_size=3).map(tuple),
    filters=st.integers(1, 64),
    memory=st.integers(1, 64),
    window=st.integers(2, 32),
    normalize=st.booleans(),
    quantization_aware=st.booleans(),
)


def recipe(network: NetworkConfig | None = None, path: str = APPO, **settings: object) -> Recipe:
    return Recipe.of(load_algorithm(path, settings), network or NetworkConfig())


@given(networks)
def test_json_gives_back_what_was_there(network: NetworkConfig) -> None:
    made = recipe(network, epochs=3)
    again = Recipe.from_json(json.loads(json.dumps(made.to_json())), source="a test")
    assert again.network == network
    assert again.choice() == load_algorithm(APPO, {"epochs": 3})
    assert again.trains_as(made)


@pytest.mark.parametrize("name", ["appo:APPO", "impala:IMPALA", "dqn:DQN", "sac:SAC"])
def test_every_algorithm_is_built_again_from_it(name: str) -> None:
    made = recipe(path=f"cloud_learner.algorithms.{name}")
    again = Recipe.from_json(json.loads(json.dumps(made.to_json())), source="a test")
    assert again.choice().settings == load_algorithm(made.algorithm, {}).settings


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "names no algorithm"),
        ({"algorithm": APPO, "settings": {}}, "describes no network"),
        ({"algorithm": APPO, "settings": {}, "network": {"hidden": "x"}}, "hidden"),
    ],
)
def test_what_lacks_a_part_is_refused(value: dict[str, object], said: str) -> None:
    with pytest.raises((WireError, ConfigError), match=said):
        Recipe.from_json(value, source="a test")


def test_code_that_is_not_shoals_own_is_named() -> None:
    assert recipe().foreign() == []
    foreign = Recipe("mine:Algorithm", {}, NetworkConfig(kind="mine:torso"))
    assert foreign.foreign() == ["mine:Algorithm", "mine:torso"]
    assert Recipe("cloud_learner.algorithms.os:x:y", {}, NetworkConfig()).foreign()


SMALL = NetworkConfig(hidden=(8,))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (SMALL, replace(SMALL, kind="mlp"), True),  # what `auto` is, spaces decide
        (replace(SMALL, kind="cnn"), SMALL, True),
        (replace(SMALL, kind="cnn"), replace(SMALL, kind="mlp"), False),
        (SMALL, replace(SMALL, hidden=(8, 8)), False),
        (SMALL, replace(SMALL, normalize=True), False),
        (SMALL, replace(SMALL, memory=3), True),  # there is none
        (replace(SMALL, kind="lstm"), replace(SMALL, kind="lstm", memory=3), False),
        (replace(SMALL, kind="lstm"), replace(SMALL, kind="lstm", window=3), True),
        (replace(SMALL, kind="attention"), replace(SMALL, kind="attention", window=3), False),
        (replace(SMALL, kind="cnn"), replace(SMALL, kind="cnn", filters=3), False),
    ],
)
def test_weights_of_one_network_are_of_another_only_where_it_has_the_same(
    one: NetworkConfig,
    other: NetworkConfig,
    same: bool,  # noqa: FBT001 a parameter
) -> None:
    assert recipe(one).trains_as(recipe(other)) is same
    assert recipe(other).trains_as(recipe(one)) is same


def test_settings_may_change_and_the_algorithm_may_not() -> None:
    assert recipe(SMALL).trains_as(recipe(SMALL, epochs=9))
    assert not recipe(SMALL).trains_as(recipe(SMALL, path=SAC))


def test_a_person_reads_what_it_is() -> None:
    assert str(recipe(replace(SMALL, kind="lstm", memory=3))) == (
        f"{APPO} with a network of kind 'lstm', hidden [8], memory 3"
    )
