"""Experience as values: chunks admitted to replay, and what one step of the learner trains from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.envelope import ChunkKey
from shoal.tensors import Array
from shoal.trajectory import Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """One chunk that the journal holds and the learner may train from.

    Attributes:
        key: who made it.
        position: its position in the journal.
        chunk: its T x N transitions, all under one policy version.
        version_updates: the learner's optimiser updates when that version was published.
    """

    key: ChunkKey
    position: int
    chunk: Chunk
    version_updates: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rollouts to train from once: whole chunks side by side, B = sum of their N.

    Attributes:
        observations: [T+1, B, *observation], the environment's own dtype.
        actions: [T, B, *action], int64 or float32, raw.
        log_probs: [T, B] float32, of the int8 graph that sampled.
        rewards: [T, B] float32.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        final_index: [K] int32, flat ``t * B + b``, increasing.
        final_observations: [K, *observation], the true last observation of each ended episode.
        initial_state: [B, S] float32, memory of the policy before the first step; S = 0 for none.
        starts: [T, B] bool, a new episode begins at t within the batch; never at t = 0.
        lags: [B] int64, optimiser updates between the version that acted and now.
        positions: the chunks' positions in the journal, in the order of the columns.
    """

    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_index: NDArray[np.int32]
    final_observations: Array
    initial_state: NDArray[np.float32]
    starts: NDArray[np.bool_]
    lags: NDArray[np.int64]
    positions: tuple[int, ...]

    @property
    def transitions(self) -> int:
        """How many transitions the batch holds: T x B."""
        return int(self.rewards.size)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """[T, B], whether an episode ended with the step, either way."""
        return self.terminated | self.truncated


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Single transitions drawn from a store that keeps them; each spans up to n steps.

    Attributes:
        observations: [M, *observation], the environment's own dtype.
        actions: [M, *action].
        rewards: [M] float32, raw: the sum of gamma^i r_{t+i} over the steps spanned.
        next_observations: [M, *observation], what the last of them led to: the true final
            observation where an episode ended.
        discounts: [M] float32, what the value of that is worth: gamma^steps, or 0 where it
            terminated.
        weights: [M] float32, importance weights, the largest is 1; all 1 when drawn uniformly.
        slots: [M] int64, where each lies.
        stamps: [M] int64, which of the slot's contents was meant.
        lags: [M] int64, optimiser updates since the version that acted.
    """

    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    next_observations: Array
    discounts: NDArray[np.float32]
    weights: NDArray[np.float32]
    slots: NDArray[np.int64]
    stamps: NDArray[np.int64]
    lags: NDArray[np.int64]

    @property
    def transitions(self) -> int:
        """How many transitions the batch holds: M."""
        return int(self.rewards.size)


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """A chunk that has just come into a store of transitions: each is seen once.

    Attributes:
        observations: [T, N, *observation].
        rewards: [T, N] float32, raw.
        ended: [T, N] bool, whether an episode ended with the step, either way.
    """

    observations: Array
    rewards: NDArray[np.float32]
    ended: NDArray[np.bool_]

    @classmethod
    def of(cls, chunk: Chunk) -> Fresh:
        """What a chunk brings."""
        return cls(chunk.observations[:-1], chunk.rewards, chunk.terminated | chunk.truncated)


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Observations that look like those of devices, where the learner gets none.

    Attributes:
        observations: [M, *observation]; M = 0 when nothing is known of them.
    """

    observations: Array


def collate(taken: Sequence[Admitted], *, updates_now: int) -> Batch:
    """Lays chunks of the same length side by side.

    Args:
        taken: one or more chunks with the same T.
        updates_now: the learner's optimiser updates, for the lags.
    """
    chunks = [item.chunk for item in taken]
    width = sum(chunk.envs for chunk in chunks)
    indices: list[NDArray[np.int64]] = []
    first = 0
    for chunk in chunks:
        flat = chunk.final_index.astype(np.int64)
        indices.append(flat // chunk.envs * width + flat % chunk.envs + first)
        first += chunk.envs
    final_index = np.concatenate(indices)
    order = np.argsort(final_index, kind="stable")
    finals = np.concatenate([chunk.final_observations for chunk in chunks])
    lags = np.concatenate(
        [
            np.full(item.chunk.envs, updates_now - item.version_updates, dtype=np.int64)
            for item in taken
        ]
    )
    terminated = np.concatenate([chunk.terminated for chunk in chunks], axis=1)
    truncated = np.concatenate([chunk.truncated for chunk in chunks], axis=1)
    starts = np.zeros_like(terminated)
    np.logical_or(terminated[:-1], truncated[:-1], out=starts[1:])
    return Batch(
        observations=np.concatenate([chunk.observations for chunk in chunks], axis=1),
        actions=np.concatenate([chunk.actions for chunk in chunks], axis=1),
        log_probs=np.concatenate([chunk.log_probs for chunk in chunks], axis=1),
        rewards=np.concatenate([chunk.rewards for chunk in chunks], axis=1),
        terminated=terminated,
        truncated=truncated,
        final_index=final_index[order].astype(np.int32),
        final_observations=finals[order],
        initial_state=np.concatenate([initial_state_of(chunk) for chunk in chunks]),
        starts=starts,
        lags=lags,
        positions=tuple(item.position for item in taken),
    )


def initial_state_of(chunk: Chunk) -> NDArray[np.float32]:
    """[N, S] float32, the policy's memory before the chunk; S = 0 when it says none."""
    if chunk.initial_state is None:
        return np.zeros((chunk.envs, 0), np.float32)
    return chunk.initial_state
