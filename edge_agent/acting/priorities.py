"""How far a policy's Q-values were off at each step: what prioritized replay draws by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.trajectory import Chunk


def td_errors(values: NDArray[np.float32], chunk: Chunk, gamma: float) -> NDArray[np.float32]:
    """|r + gamma max_b Q(s', b) - Q(s, a)| of each step (Schaul et al. 2015, equation 1).

    Where the episode terminated nothing follows. Where it was truncated, the Q-values of its last
    observation are not known without another run of the policy: those of the observation before it
    stand in.

    Args:
        values: Q-values `[T+1, N, n]` of the chunk's observations.
        chunk: Its actions are `[T, N]`, one Discrete.
        gamma: The discount.

    Returns:
        float32 `[T, N]`, finite.
    """
    q: NDArray[np.float64] = values.astype(np.float64)
    best = q.max(axis=-1)
    follows = np.where(chunk.truncated, best[:-1], best[1:])
    follows[chunk.terminated] = 0.0
    taken = np.take_along_axis(q[:-1], chunk.actions[..., None], axis=-1)[..., 0]
    errors = np.abs(chunk.rewards + gamma * follows - taken)
    return np.asarray(np.minimum(errors, np.finfo(np.float32).max), np.float32)
