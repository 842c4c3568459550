"""The noise that samples actions: a counter-based generator addressed by `(run_id, step)`.

Given a run and a step anybody can make the same noise again, so a learner can re-run the decision
of any device. Philox-4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is
used raw, because numpy promises its raw stream for ever, but not that of its distributions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.spaces import Space, noise_kind, width

RUN_ID_BYTES = 16
_WORDS_PER_COUNT = 4


def noise_block(
    run_id: bytes, first_step: int, steps: int, envs: int, action: Space
) -> NDArray[np.float32]:
    """Noise for consecutive vector steps of one run.

    Args:
        run_id: 16 bytes; the generator's key.
        first_step: Vector steps of this run before the block; the generator's counter.
        steps: Vector steps in the block, T.
        envs: Environments on the device, N.
        action: Standard Gumbel for Discrete `[T, N, n]`, unit normal for Box `[T, N, prod(shape)]`.

    Returns:
        float32 `[T, N, width]`. `noise_block(r, 0, 8, ...)` is the concatenation of
        `noise_block(r, 0, 5, ...)` and `noise_block(r, 5, 3, ...)`.
    """
    if len(run_id) != RUN_ID_BYTES:
        raise ValueError(f"run_id must be {RUN_ID_BYTES} bytes, not {len(run_id)}")
    needed = envs * width(action)
    counts = -(-needed // _WORDS_PER_COUNT)
    generator = np.random.Philox(
        key=np.frombuffer(run_id, "<u8").astype(np.uint64), counter=first_step * counts
    )
    raw = generator.random_raw(steps * counts * _WORDS_PER_COUNT)
    words = np.asarray(raw, np.uint64).reshape(steps, counts * _WORDS_PER_COUNT)[:, :needed]
    high = ((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32  # in (0, 1)
    if noise_kind(action) == "gumbel":
        noise = -np.log(-np.log(high))
    else:  # Box & Muller 1958
        low = ((words & np.uint64(0xFFFFFFFF)).astype(np.float64) + 0.5) * 2.0**-32
        noise = np.sqrt(-2.0 * np.log(high)) * np.cos(2.0 * np.pi * low)
    return noise.astype(np.float32).reshape(steps, envs, width(action))
