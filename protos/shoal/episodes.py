"""The episodes that end in a chunk, as columns: a learner reads thousands of them a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from shoal.errors import WireError
from shoal.tensors import Array, all_finite
from shoal.v1 import trajectory_pb2 as pb

_TOO_LONG: Final = 1 << 62


class Episode(NamedTuple):
    """An episode that ended in a chunk. A tuple, since a learner makes thousands a second.

    Attributes:
        env: Index of the environment on the device.
        step: Index in the chunk of the episode's last step.
        total_return: Sum of raw rewards over the whole episode.
        length: Environment steps over the whole episode.
    """

    env: int
    step: int
    total_return: float
    length: int


class Episodes(Sequence[Episode]):
    """The episodes of a chunk that was read, as columns; each is made when it is asked for.

    episodes = Episodes(final_index, envs=16, returns=returns, lengths=lengths)
    episodes[-1].total_return
    """

    __slots__ = ("_ends", "_envs", "lengths", "returns")
    __hash__ = None  # type: ignore[assignment] # as long as the arrays

    def __init__(
        self,
        ends: NDArray[np.int32],
        *,
        envs: int,
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Joins columns of equal length.

        Args:
            ends: `[K]`, flat `t * N + n`.
            envs: N.
            returns: `[K]`, sums of raw rewards.
            lengths: `[K]`, environment steps.
        """
        self._ends = ends
        self._envs = envs
        self.returns = returns
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Episode, ...]: ...
    def __getitem__(self, index: int | slice) -> Episode | tuple[Episode, ...]:
        """One of them, or some."""
        if not isinstance(index, slice):
            return self[index : index + 1 or None][0]
        steps, envs = np.divmod(self._ends[index], self._envs)
        columns = (envs, steps, self.returns[index], self.lengths[index])
        return tuple(map(_episode, zip(*(column.tolist() for column in columns), strict=True)))

    def __iter__(self) -> Iterator[Episode]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        """Whether the same episodes come in the same order, in whatever sequence."""
        return isinstance(other, Sequence) and self[:] == tuple(other)


# No Python code for each: a short episode ends a hundred times in a large chunk.
_episode_fields: Final = attrgetter(*Episode._fields)
_episode: Final = partial(tuple.__new__, Episode)


def episodes_of(episodes: Sequence[Episode], ends: NDArray[np.int32], rewards: Array) -> Episodes:
    """Episodes as columns.

    Args:
        episodes: One for each end, in order.
        ends: `[K]`, flat `t * N + n`.
        rewards: `[T, N]`.

    Raises:
        WireError: They are not those that ended there, or one is too long.
    """
    if isinstance(episodes, Episodes):
        return episodes
    envs = _envs_of(rewards)
    returns, lengths = _columns(episodes, ends, envs)
    return Episodes(ends, envs=envs, returns=returns, lengths=lengths)


def read_episodes(
    messages: Iterable[pb.Episode],
    *,
    ends: Array,
    rewards: Array,
    returns: Array | None,
    lengths: Array | None,
) -> Episodes:
    """The episodes of a message, which an older device wrote one by one.

    Args:
        messages: Those of an older device.
        ends: `[K]`, flat `t * N + n`.
        rewards: `[T, N]`.
        returns: `[K]` float64, None from an older device.
        lengths: `[K]` int64, likewise.

    Raises:
        WireError: They came both ways, or are not those that ended at `ends`.
    """
    envs = _envs_of(rewards)
    if returns is None and lengths is None:
        returns, lengths = _columns(map(_episode_fields, messages), ends, envs)
    elif returns is None or lengths is None or any(True for _ in messages):
        raise WireError("chunk: episodes must come as returns and lengths, or one by one")
    if returns.dtype != np.float64 or lengths.dtype != np.int64:
        raise WireError(f"chunk: episodes' returns are {returns.dtype}, lengths {lengths.dtype}")
    return Episodes(ends, envs=envs, returns=returns, lengths=lengths)


def check_episodes(episodes: Episodes, count: int) -> None:
    """Checks their number and their values.

    Raises:
        WireError: There are more or fewer than `count`, or a return or length is out of range.
    """
    returns, lengths = episodes.returns, episodes.lengths
    if returns.shape != (count,) or lengths.shape != (count,):
        raise WireError("chunk: there must be one episode for each end, in order")
    if not all_finite(returns) or (
        count and not (lengths.min() >= 1 and lengths.max() < _TOO_LONG)
    ):
        raise WireError("chunk: an episode's return or length is out of range")


def _envs_of(rewards: Array) -> int:
    if rewards.ndim != len("TN") or not rewards.size:
        raise WireError(f"chunk: rewards must be [T, N], not {rewards.shape}")
    return int(rewards.shape[1])


def _columns(
    episodes: Iterable[tuple[int, int, float, int]], ends: Array, envs: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths of episodes that name where each ended."""
    each = list(episodes)
    if [step * envs + env for env, step, _, _ in each] != ends.tolist():
        raise WireError("chunk: there must be one episode for each end in final_index, in order")
    if any(env >= envs or length >= _TOO_LONG for env, _, _, length in each):
        raise WireError("chunk: an episode's environment or length is out of range")
    returns = np.array([total_return for _, _, total_return, _ in each], np.float64)
    return returns, np.array([length for _, _, _, length in each], np.int64)
