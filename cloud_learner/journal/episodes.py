"""Joins the chunks of one run into whole episodes, and never across a gap."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.tensors import Array
from shoal.trajectory import Chunk


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a run: in which chunk, and where in it."""

    seq: int
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class WholeEpisode:
    """An episode from its first step to its last, L steps.

    Attributes:
        env: Index of the environment on the device.
        first: Where its first step is.
        last: Where its last step is.
        observations: `[L+1, ...]`, the true last observation among them.
        actions: `[L, ...]`, as chunks have them: raw, discrete ones counted from 0.
        log_probs: float32 `[L]`.
        rewards: float32 `[L]`.
        policy_versions: int64 `[L]`, which version acted.
        terminated: Whether the task ended.
        truncated: Whether it was cut short; both may hold.
    """

    env: int
    first: Place
    last: Place
    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    policy_versions: NDArray[np.int64]
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        """L."""
        return int(self.rewards.size)


@dataclass(slots=True)
class _Open:
    """The episode an environment is in: pieces of chunks, or None where its start is unknown."""

    first: Place
    observations: list[Array] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    rewards: list[NDArray[np.float32]] = field(default_factory=list)
    versions: list[NDArray[np.int64]] = field(default_factory=list)

    def take(self, chunk: Chunk, env: int, start: int, stop: int) -> None:
        """Adds the steps from `start` to before `stop`."""
        self.observations.append(chunk.observations[start:stop, env])
        self.actions.append(chunk.actions[start:stop, env])
        self.log_probs.append(chunk.log_probs[start:stop, env])
        self.rewards.append(chunk.rewards[start:stop, env])
        self.versions.append(np.full(stop - start, chunk.policy_version, np.int64))

    @property
    def steps(self) -> int:
        """How many it has so far."""
        return sum(map(len, self.rewards))


class EpisodeJoiner:
    """Takes the chunks of one run in order, gives the episodes that ended in each.

    An episode is known whole when its start was seen: the run's first step, or the step after
    another episode's end. A chunk that is missing, or steps that were never recorded (a device
    whose rollout was given up), leave every environment's episode unknown until its next start.

    >>> joiner = EpisodeJoiner()
    >>> for item in journal.chunks(run):
    ...     episodes = joiner.add(item.seq, item.chunk)
    """

    def __init__(self) -> None:
        self._open: list[_Open | None] = []
        self._next_seq = 0
        self._next_step = 0
        self._left_out = 0

    @property
    def left_out(self) -> int:
        """Steps so far that belong to no whole episode: of begun and of torn ones."""
        return self._left_out + sum(one.steps for one in self._open if one is not None)

    def add(self, seq: int, chunk: Chunk) -> list[WholeEpisode]:
        """Takes the next chunk of the run.

        Args:
            seq: Its number in the run, higher than any before.
            chunk: All of it.

        Returns:
            The episodes that ended in it, in order of their last steps.
        """
        follows = seq == self._next_seq and chunk.first_step == self._next_step
        if not follows or chunk.envs != len(self._open):
            self._left_out = self.left_out
            fresh = chunk.first_step == 0
            self._open = [_Open(Place(seq, 0)) if fresh else None for _ in range(chunk.envs)]
        self._next_seq, self._next_step = seq + 1, chunk.first_step + chunk.steps
        found: list[WholeEpisode] = []
        starts = [0] * chunk.envs
        for index, episode in enumerate(chunk.episodes):
            env, after = episode.env, episode.step + 1
            current = self._open[env]
            if current is None:
                self._left_out += after - starts[env]
            else:
                current.take(chunk, env, starts[env], after)
                found.append(_close(current, seq, chunk, index))
            starts[env] = after
            self._open[env] = _Open(Place(seq, after))
        for env, start in enumerate(starts):
            current = self._open[env]
            if current is None:
                self._left_out += chunk.steps - start
            elif start < chunk.steps:
                current.take(chunk, env, start, chunk.steps)
            else:
                self._open[env] = _Open(Place(seq + 1, 0))
        return found


def _close(current: _Open, seq: int, chunk: Chunk, index: int) -> WholeEpisode:
    ended = chunk.episodes[index]
    final = chunk.final_observations[index : index + 1]
    return WholeEpisode(
        env=ended.env,
        first=current.first,
        last=Place(seq, ended.step),
        observations=np.concatenate([*current.observations, final]),
        actions=np.concatenate(current.actions),
        log_probs=np.concatenate(current.log_probs),
        rewards=np.concatenate(current.rewards),
        policy_versions=np.concatenate(current.versions),
        terminated=bool(chunk.terminated[ended.step, ended.env]),
        truncated=bool(chunk.truncated[ended.step, ended.env]),
    )
