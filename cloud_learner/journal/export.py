"""Writes journaled episodes as a Minari dataset, for offline learning with other programs.

Actions are written as the environment took them: discrete ones with their start, those of a Box
clipped to its bounds. What the device recorded beside them goes into `infos`: the raw action, its
log-probability under the policy that sampled it, and that policy's version.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

from cloud_learner.journal.whole import RunEpisode
from shoal.errors import ConfigError, JournalError
from shoal.layout import ActionLayout, Choice, ObservationLayout
from shoal.spaces import (
    Box,
    Dict,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
)
from shoal.tensors import Array

DATASET: Final = "shoal/journal-v0"
_DATASET_ID: Final = re.compile(r"([\w-]+/)*[\w-]+-v\d+", re.ASCII)
_BATCH_EPISODES: Final = 256  # held in memory at once
_PATH_VARIABLE: Final = "MINARI_DATASETS_PATH"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    episodes: int
    steps: int


def export_minari(
    directory: Path, episodes: Iterable[RunEpisode], spec: EnvSpec, *, dataset: str = DATASET
) -> Exported:
    """Writes episodes as a dataset that `minari.load_dataset(dataset)` reads.

    Args:
        directory: Where it goes: `MINARI_DATASETS_PATH` of who reads it.
        episodes: All of the same spaces.
        spec: Those spaces.
        dataset: Its id, `[namespace/][environment/]name-vN`.

    Raises:
        ConfigError: The id is malformed or taken.
        JournalError: There is no episode, or the disk refuses.
        ModuleNotFoundError: Minari is not installed.
    """
    import minari  # noqa: PLC0415 - an extra
    from minari.data_collector import EpisodeBuffer  # noqa: PLC0415 - the same

    def buffers() -> Iterator[Any]:
        for number, item in enumerate(episodes):
            yield EpisodeBuffer(id=number, **_columns(item, spec))

    if not _DATASET_ID.fullmatch(dataset):
        raise ConfigError(f"--dataset {dataset!r}: give [namespace/]name-vN, such as {DATASET}")
    written, steps, made = 0, 0, None
    with _datasets_in(directory):
        if dataset in minari.list_local_datasets():
            raise ConfigError(
                f"{directory} holds a dataset {dataset} already; give another --dataset"
            )
        source = buffers()
        while group := list(islice(source, _BATCH_EPISODES)):
            try:
                if made is None:
                    made = minari.create_dataset_from_buffers(
                        dataset,
                        group,
                        env=_registered(spec.env_id),
                        observation_space=gymnasium_space(spec.observation),
                        action_space=gymnasium_space(spec.action),
                        algorithm_name="shoal",
                        description=f"{spec.env_id}, whole episodes of a Shoal journal",
                        jpeg_encoding=False,  # pictures stay as they were
                    )
                else:
                    made.update_dataset_from_buffer(group)
            except OSError as error:
                raise JournalError(f"cannot write {directory}: {error}") from error
            written += len(group)
            steps += sum(len(buffer.rewards) for buffer in group)
    if made is None:
        raise JournalError("the journal holds no whole episode; nothing was written")
    return Exported(written, steps)


def gymnasium_space(space: Space) -> gymnasium.Space[Any]:
    """The Gymnasium space that a space of ours was made from."""
    match space:
        case Box():
            return gymnasium.spaces.Box(space.low, space.high, dtype=space.dtype.type)
        case Discrete():
            return gymnasium.spaces.Discrete(space.n, start=space.start)
        case MultiDiscrete():
            return gymnasium.spaces.MultiDiscrete(space.nvec, start=space.start)
        case MultiBinary():
            return gymnasium.spaces.MultiBinary(list(space.shape))
        case Dict():
            return gymnasium.spaces.Dict({key: gymnasium_space(one) for key, one in space.items})
        case Tuple():
            return gymnasium.spaces.Tuple([gymnasium_space(one) for one in space.items])


def environment_actions(actions: Array, space: Space) -> Any:  # noqa: ANN401 - nested as the space is
    """Raw actions `[L, ...]` of a chunk as the environment took them: nested as the space is."""
    layout = ActionLayout.of(space)
    leaves = iter([_taken(actions, choice, single=not choice.path) for choice in layout.choices])
    return _nest(space, leaves)


def environment_observations(observations: Array, space: Space) -> Any:  # noqa: ANN401 - the same
    """Observations `[L, ...]` of a chunk as the environment gave them: nested as the space is."""
    leaves = ObservationLayout.of(space).unpack(observations)
    return _nest(space, iter([_counted(leaf) for leaf in _with_starts(leaves, space)]))


def _with_starts(leaves: dict[str, Array], space: Space) -> Iterator[Array]:
    for field in ObservationLayout.of(space).fields:
        start = getattr(field.space, "start", 0)
        leaf = leaves[field.path]
        yield leaf + start if np.any(start) else leaf


def _counted(leaf: Array) -> Array:
    return np.ascontiguousarray(leaf, leaf.dtype.newbyteorder("="))


def _taken(actions: Array, choice: Choice, *, single: bool) -> Array:
    part = actions if single else actions[:, choice.start : choice.start + choice.size]
    match choice.space:
        case Box() as box:
            shaped = part.reshape(len(part), *box.shape)
            return np.clip(shaped, box.low, box.high).astype(box.dtype.newbyteorder("="))
        case Discrete() as one:
            return part.reshape(len(part)).astype(np.int64) + one.start
        case MultiDiscrete() as several:
            return part.reshape(len(part), *several.shape).astype(np.int64) + several.start
        case MultiBinary() as bits:
            return part.reshape(len(part), *bits.shape).astype(np.int8)


def _nest(space: Space, leaves: Iterator[Array]) -> Any:  # noqa: ANN401 - nested as the space is
    match space:
        case Dict():
            return {key: _nest(one, leaves) for key, one in space.items}
        case Tuple():
            return tuple(_nest(one, leaves) for one in space.items)
        case _:
            return next(leaves)


def _columns(item: RunEpisode, spec: EnvSpec) -> dict[str, Any]:
    episode, length = item.episode, item.episode.length
    ends = np.zeros((2, length), np.bool_)
    ends[:, -1] = episode.terminated, episode.truncated
    return {
        "observations": environment_observations(episode.observations, spec.observation),
        "actions": environment_actions(episode.actions, spec.action),
        "rewards": episode.rewards,
        "terminations": ends[0],
        "truncations": ends[1],
        # Minari keeps one more info than steps: the first is of the reset.
        "infos": {
            "raw_action": _after_reset(episode.actions),
            "log_prob": _after_reset(episode.log_probs),
            "policy_version": _after_reset(episode.policy_versions),
        },
    }


def _after_reset(column: Array) -> Array:
    return np.concatenate([np.zeros_like(column[:1]), column])


def _registered(env_id: str) -> gymnasium.Env[Any, Any] | None:
    """An environment that Minari can name, so that its readers can make it again."""
    if env_id not in gymnasium.registry:
        return None
    try:
        return gymnasium.make(env_id, disable_env_checker=True)
    except gymnasium.error.Error:  # it needs packages that are not installed here
        return None


@contextmanager
def _datasets_in(directory: Path) -> Iterator[None]:
    before = os.environ.get(_PATH_VARIABLE)
    os.environ[_PATH_VARIABLE] = str(directory.absolute())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an author and a web address left out
            yield
    finally:
        if before is None:
            del os.environ[_PATH_VARIABLE]
        else:
            os.environ[_PATH_VARIABLE] = before
