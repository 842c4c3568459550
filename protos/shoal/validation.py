"""What makes a chunk acceptable to a learner of given spaces, beyond being consistent in itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ChunkRejected
from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from shoal.tensors import Array, all_finite
from shoal.trajectory import Chunk

MAX_REWARD: Final = 1e12
"""The largest reward, of either sign, that a learner takes unless it says otherwise: returns of a
thousand of them, squared and summed over a batch, are still float32 numbers."""
_BINARY_VALUES = 2
_KNOWN_COUNTS: Final = 64


def validate_chunk(chunk: Chunk, spec: EnvSpec) -> None:
    """Checks that a chunk fits the spaces a learner trains for.

    Raises:
        ChunkRejected: With the reason `fingerprint`, `dtype`, `shape`, `index` (a value out of its
            range) or `non_finite`.
    """
    if chunk.spec_fingerprint != spec.fingerprint:
        raise ChunkRejected(
            "fingerprint",
            f"chunk was made in other spaces than those of {spec.env_id}; "
            "point the device at the right fleet or environment",
        )
    observation, action = ObservationLayout.of(spec.observation), ActionLayout.of(spec.action)
    for name, array, lead, layout in (
        ("observations", chunk.observations, 2, observation),
        ("final_observations", chunk.final_observations, 1, observation),
        ("actions", chunk.actions, 2, action),
    ):
        if array.dtype != layout.dtype:
            raise ChunkRejected("dtype", f"{name} are {array.dtype}, they must be {layout.dtype}")
        if array.shape[lead:] != layout.shape:
            raise ChunkRejected("shape", f"{name} are {array.shape[lead:]}, not {layout.shape}")
    for name in ("log_probs", "rewards", "initial_state", "priorities"):
        _check_finite(name, getattr(chunk, name))
    if chunk.priorities is not None and (chunk.priorities < 0).any():
        raise ChunkRejected("index", "priorities are below 0")
    _check_observations("observations", chunk.observations, observation)
    _check_observations("final_observations", chunk.final_observations, observation)
    _check_actions(chunk.actions, action)


def check_rewards(rewards: NDArray[np.float32], limit: float) -> None:
    """Checks that training survives rewards.

    Args:
        rewards: Finite, of any shape.
        limit: The largest that is taken, of either sign.

    Raises:
        ChunkRejected: With the reason `reward`.
    """
    largest = float(np.abs(rewards).max(initial=0.0))
    if largest > limit:
        raise ChunkRejected(
            "reward",
            f"a reward of size {largest:.3g} is over training.max_reward ({limit:g}): mend or "
            "scale it in the environment, or raise that where training.settings.reward_scale "
            "makes it small",
        )


def _check_finite(name: str, array: Array | None) -> None:
    if array is not None and array.dtype.kind == "f" and not all_finite(array):
        raise ChunkRejected("non_finite", f"{name} hold NaN or infinity; mend the environment")


def _check_observations(name: str, array: Array, layout: ObservationLayout) -> None:
    if not layout.packed and layout.dtype.kind == "f":  # a Box: the commonest by far
        _check_finite(name, array)
        return
    leaves = layout.unpack(array)
    for field in layout.fields:
        leaf = leaves[field.path]
        where = field.input_name(name)
        _check_finite(where, leaf)
        if field.dtype.kind == "b" and (leaf.view(np.uint8) > 1).any():
            raise ChunkRejected("index", f"{where}: a bool must be 0 or 1")
        match field.space:
            case Discrete(n=count):
                _check_range(where, leaf, count)
            case MultiDiscrete(nvec=nvec):
                _check_range(where, leaf, nvec)
            case MultiBinary():
                _check_range(where, leaf, _BINARY_VALUES)
            case Box():
                pass  # an environment's bounds are a promise that many break


def _check_actions(actions: Array, layout: ActionLayout) -> None:
    _check_finite("actions", actions)
    if layout.discrete and len(layout.choices) == 1 and not layout.shape:  # one choice of n
        _check_range("actions", actions, layout.choices[0].values[0])
        return
    numbers = actions.reshape(*actions.shape[:2], layout.size)
    for choice in layout.choices:
        if choice.values:
            chosen = numbers[..., choice.start : choice.start + choice.size]
            where = f"actions.{choice.path}" if choice.path else "actions"
            if chosen.dtype.kind == "f" and (chosen != np.rint(chosen)).any():
                raise ChunkRejected("index", f"{where} are discrete, and not whole numbers")
            _check_range(where, chosen, _counts(choice.values))


@lru_cache(_KNOWN_COUNTS)
def _counts(values: tuple[int, ...]) -> int | NDArray[np.int64]:
    """How many values each number has; one for all of them where that is so."""
    return values[0] if len(set(values)) == 1 else np.array(values)


def _check_range(name: str, array: Array, counts: int | NDArray[np.int64]) -> None:
    if not array.size:
        return
    if isinstance(counts, int) and array.dtype.kind == "i":
        unsigned = array.view(array.dtype.str.replace("i", "u"))  # below 0 is beyond all counts
        wrong = np.maximum.reduce(unsigned, None) >= counts
    else:
        wrong = ((array < 0) | (array >= counts)).any()
    if wrong:
        raise ChunkRejected(
            "index", f"{name} reach from {array.min()} to {array.max()}: out of their space"
        )
