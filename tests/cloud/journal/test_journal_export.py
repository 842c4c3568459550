"""Journaled episodes become a Minari dataset: what the environment saw, to the last number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from cloud.test_episodes import join, run_of

from cloud_learner.journal.audit import RunKey
from cloud_learner.journal.episodes import Place, WholeEpisode
from cloud_learner.journal.export import (
    DATASET,
    environment_actions,
    environment_observations,
    export_minari,
    gymnasium_space,
)
from cloud_learner.journal.whole import RunEpisode
from shoal.errors import ConfigError, JournalError
from shoal.layout import ObservationLayout
from shoal.spaces import Box, Dict, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space, Tuple

RUN = RunKey("pi-1", bytes(16))
F4 = np.float32
ARM = Box(np.full(2, -1, F4), np.full(2, 1, F4))
GRID = MultiDiscrete(np.array([[2, 3], [4, 5]]), np.array([[0, 0], [1, 1]]))
NESTED = Dict((("arm", ARM), ("keys", Tuple((Discrete(3, 5), MultiBinary((2,)), GRID)))))
BIG = np.full(2, 1e6, F4)


def load(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(directory))
    return list(minari.load_dataset(DATASET).iterate_episodes())


def test_a_dataset_holds_every_whole_episode_with_its_true_last_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("mine:Env", Box(-BIG, BIG), Discrete(10_000, 3))
    run = run_of([[3, 5], [4]], chunk_steps=7, chunks=25)
    episodes, _ = join(list(enumerate(run)))
    monkeypatch.setattr("cloud_learner.journal.export._BATCH_EPISODES", 16)
    assert len(episodes) > 2 * 16  # more than are held in memory at once
    exported = export_minari(tmp_path, (RunEpisode(RUN, e) for e in episodes), spec)
    assert exported.episodes == len(episodes)
    assert exported.steps == sum(episode.length for episode in episodes)
    read = load(tmp_path, monkeypatch)
    assert len(read) == len(episodes)
    for ours, theirs in zip(episodes, read, strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations)
        np.testing.assert_array_equal(theirs.actions, ours.actions + 3)
        np.testing.assert_array_equal(theirs.infos["raw_action"][1:], ours.actions)
        np.testing.assert_array_equal(theirs.infos["policy_version"][1:], ours.policy_versions)
        assert (theirs.terminations[-1], theirs.truncations[-1]) == (
            ours.terminated,
            ours.truncated,
        )
        assert not (theirs.terminations | theirs.truncations)[:-1].any()


def episode_in(space: Space, actions: np.ndarray[Any, Any]) -> WholeEpisode:
    rng, length = np.random.default_rng(0), len(actions)
    shape = ObservationLayout.of(space).shape
    packed = rng.integers(0, 2, (length + 1, *shape)).astype(ObservationLayout.of(space).dtype)
    return WholeEpisode(
        env=0,
        first=Place(0, 0),
        last=Place(0, length - 1),
        observations=packed,
        actions=actions,
        log_probs=np.zeros(length, F4),
        rewards=np.ones(length, F4),
        policy_versions=np.ones(length, np.int64),
        terminated=True,
        truncated=False,
    )


def test_nested_spaces_are_nested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = np.array([[0.5, -3.0, 2, 1, 0, 1, 2, 3, 4]] * 3, F4)
    episode = episode_in(NESTED, flat)
    export_minari(tmp_path, [RunEpisode(RUN, episode)], EnvSpec("mine:Env", NESTED, NESTED))
    (read,) = load(tmp_path, monkeypatch)
    keys = read.actions["keys"]
    assert read.actions["arm"][0].tolist() == [0.5, -1.0]  # clipped, as the environment took it
    assert (keys[0][0], keys[1][0].tolist()) == (7, [1, 0])
    assert keys[2][0].tolist() == [[1, 2], [4, 5]]
    arm = episode.observations[:, :8].copy().view(F4)
    np.testing.assert_array_equal(read.observations["arm"], arm)


def test_what_is_written_is_of_the_environments_own_spaces() -> None:
    space, rng = gymnasium_space(NESTED), np.random.default_rng(1)
    rows = rng.normal(size=(4, 2)).astype(F4)
    whole = np.concatenate([rows, np.zeros((4, 7), F4)], axis=1)
    taken = environment_actions(whole, NESTED)
    first = {"arm": taken["arm"][0], "keys": tuple(leaf[0] for leaf in taken["keys"])}
    assert space.contains(first)
    layout = ObservationLayout.of(NESTED)
    seen = environment_observations(np.zeros((2, *layout.shape), np.uint8), NESTED)
    first = {"arm": seen["arm"][0], "keys": tuple(leaf[0] for leaf in seen["keys"])}
    assert space.contains(first)


def test_without_a_whole_episode_nothing_is_written(tmp_path: Path) -> None:
    spec = EnvSpec("mine:Env", ARM, ARM)
    with pytest.raises(JournalError, match="no whole episode"):
        export_minari(tmp_path, [], spec)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dataset", ["bad name", "../../escape-v0", "no-version", ""])
def test_a_malformed_dataset_id_is_refused_before_anything_is_written(
    tmp_path: Path, dataset: str
) -> None:
    with pytest.raises(ConfigError, match="--dataset"):
        export_minari(tmp_path, [], EnvSpec("mine:Env", ARM, ARM), dataset=dataset)
    assert not list(tmp_path.iterdir())


def test_a_dataset_is_never_written_over(tmp_path: Path) -> None:
    episode = episode_in(ARM, np.zeros((3, 2), F4))
    spec = EnvSpec("mine:Env", ARM, ARM)
    export_minari(tmp_path, [RunEpisode(RUN, episode)], spec)
    with pytest.raises(ConfigError, match="already"):
        export_minari(tmp_path, [RunEpisode(RUN, episode)], spec)
