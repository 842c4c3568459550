"""The noise that samples actions: a counter-based generator addressed by `(run_id, step)`.

Given a run and a step anybody can make the same noise again, so a learner can re-run the decision
of any device. Philox-4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is
used raw, because numpy promises its raw stream for ever, but not that of its distributions.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.layout import ActionLayout
from shoal.spaces import Space

RUN_ID_BYTES = 16
RESTART_STEPS: Final = 256
"""Correlated noise starts afresh at each vector step that this divides, so that no step needs more
than this many before it."""
_WORDS_PER_COUNT = 4


def noise_block(
    run_id: bytes,
    first_step: int,
    steps: int,
    envs: int,
    action: Space,
    correlation: float = 0.0,
) -> NDArray[np.float32]:
    """Noise for consecutive vector steps of one run.

    Discrete elements take standard Gumbel noise, one column a value, never correlated. Numbers of
    a Box take unit normal noise n_t, one column each. With a correlation rho it is the stationary
    AR(1) process x_t = rho x_(t-1) + sqrt(1 - rho^2) n_t, which is an Ornstein-Uhlenbeck process
    looked at in equal steps (Uhlenbeck & Ornstein 1930): each x_t is unit normal still, x_t and
    x_(t+k) correlate with rho^k. Where `RESTART_STEPS` divides t, x_t = n_t.

    Args:
        run_id: 16 bytes; the generator's key.
        first_step: Vector steps of this run before the block; the generator's counter.
        steps: Vector steps in the block, T.
        envs: Environments on the device, N.
        action: The space that is acted in; its `ActionLayout` says which column is whose.
        correlation: rho, 0 to 1, of the normal noise of one step with that of the next.

    Returns:
        float32 `[T, N, noise_width]`. `noise_block(r, 0, 8, ...)` is the concatenation of
        `noise_block(r, 0, 5, ...)` and `noise_block(r, 5, 3, ...)`.
    """
    if len(run_id) != RUN_ID_BYTES:
        raise ValueError(f"run_id must be {RUN_ID_BYTES} bytes, not {len(run_id)}")
    if not 0 <= correlation <= 1:
        raise ValueError(f"the correlation is {correlation}: give a value from 0 to 1")
    layout = ActionLayout.of(action)
    normal = np.concatenate(
        [np.full(choice.noise_width, choice.noise == "normal") for choice in layout.choices]
    )
    before = first_step % RESTART_STEPS if correlation and normal.any() else 0
    words = _words(run_id, first_step - before, before + steps, envs * layout.noise_width)
    if not normal.any():
        noise = _gumbel(words)
    else:
        noise = _normal(words)
        if correlation:
            _correlate(noise, first_step - before, correlation)
        if not normal.all():
            noise = np.where(np.tile(normal, envs), noise, _gumbel(words))
    return noise[before:].astype(np.float32).reshape(steps, envs, layout.noise_width)


def _words(run_id: bytes, first_step: int, steps: int, needed: int) -> NDArray[np.uint64]:
    """Raw words `[steps, needed]`; a step begins a new count of the generator."""
    counts = -(-needed // _WORDS_PER_COUNT)
    generator = np.random.Philox(
        key=np.frombuffer(run_id, "<u8").astype(np.uint64), counter=first_step * counts
    )
    raw = generator.random_raw(steps * counts * _WORDS_PER_COUNT)
    return np.asarray(raw, np.uint64).reshape(steps, counts * _WORDS_PER_COUNT)[:, :needed]


def _high(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return ((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32  # in (0, 1)


def _gumbel(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return -np.log(-np.log(_high(words)))


def _normal(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Box & Muller 1958."""
    low = ((words & np.uint64(0xFFFFFFFF)).astype(np.float64) + 0.5) * 2.0**-32
    return np.sqrt(-2.0 * np.log(_high(words))) * np.cos(2.0 * np.pi * low)


def _correlate(noise: NDArray[np.float64], first_step: int, rho: float) -> None:
    """Makes unit normal noise `[steps, ...]` correlated, in place; it begins with a restart."""
    fresh = math.sqrt(1.0 - rho * rho)
    for t in range(1, len(noise)):
        if (first_step + t) % RESTART_STEPS:
            noise[t] = rho * noise[t - 1] + fresh * noise[t]
