"""Hypothesis strategies and builders of wire values, shared by all tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shoal.spaces import Box, Discrete, EnvSpec, Space, action_dtype, action_shape
from shoal.tensors import DTYPES
from shoal.trajectory import Chunk, ChunkKey, Envelope, Episode

RUN_ID = bytes(range(16))
DIGEST = bytes(range(32))
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
SEQS = st.integers(0, 2**62 - 1)
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
dtypes = st.sampled_from(sorted(DTYPES.values(), key=str))


def arrays(shape: tuple[int, ...], dtype: np.dtype[Any]) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of a dtype, NaN and infinities included."""
    return hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype))


def finite(shape: tuple[int, ...], dtype: np.dtype[Any]) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of a dtype without NaN and infinities."""
    elements = (
        hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)
        if dtype.kind == "f"
        else hnp.from_dtype(dtype)
    )
    return hnp.arrays(dtype, shape, elements=elements)


@st.composite
def boxes(draw: st.DrawFn, dtype: np.dtype[Any] | None = None) -> Box:
    """Box spaces of any dtype that travels, also without bounds."""
    kind = draw(dtypes) if dtype is None else dtype
    shape = draw(SHAPES)
    if kind.kind == "f" and draw(st.booleans()):
        high = np.full(shape, np.inf, kind)
        return Box(-high, high)
    return Box(np.zeros(shape, kind), np.ones(shape, kind))


def spaces() -> st.SearchStrategy[Space]:
    """Action spaces."""
    discrete = st.builds(Discrete, st.integers(1, 9), st.integers(-5, 5))
    return st.one_of(discrete, boxes(np.dtype("<f4")))


@st.composite
def specs(draw: st.DrawFn) -> EnvSpec:
    """Environment specifications."""
    return EnvSpec(
        env_id=draw(st.text(max_size=20)),
        observation=draw(boxes()),
        action=draw(spaces()),
        reward_threshold=draw(st.none() | st.floats(allow_nan=False)),
        max_episode_steps=draw(st.none() | st.integers(1, 2**32 - 1)),
    )


@st.composite
def chunks(draw: st.DrawFn, spec: EnvSpec) -> Chunk:
    """Valid chunks of a specification: any T, N, ends of episodes, and finite values."""
    steps, envs = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    assert isinstance(spec.observation, Box)
    dtype, shape = spec.observation.dtype, spec.observation.shape
    terminated = draw(hnp.arrays(np.bool_, (steps, envs)))
    truncated = draw(hnp.arrays(np.bool_, (steps, envs)))
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    f4 = np.dtype(np.float32)
    if isinstance(spec.action, Discrete):
        actions = draw(
            hnp.arrays(np.int64, (steps, envs), elements=st.integers(0, spec.action.n - 1))
        )
    else:
        actions = draw(finite((steps, envs, *action_shape(spec.action)), action_dtype(spec.action)))
    return Chunk(
        spec_fingerprint=spec.fingerprint,
        policy_version=draw(SEQS),
        policy_digest=draw(st.binary(min_size=32, max_size=32)),
        first_step=draw(SEQS),
        observations=draw(finite((steps + 1, envs, *shape), dtype)),
        actions=actions,
        log_probs=draw(finite((steps, envs), f4)),
        rewards=draw(finite((steps, envs), f4)),
        terminated=terminated,
        truncated=truncated,
        final_index=ends,
        final_observations=draw(finite((ends.size, *shape), dtype)),
        episodes=tuple(
            Episode(
                env=int(end) % envs,
                step=int(end) // envs,
                total_return=draw(st.floats(allow_nan=False, allow_infinity=False)),
                length=draw(st.integers(1, 2**40)),
            )
            for end in ends
        ),
    )


@st.composite
def specs_and_chunks(draw: st.DrawFn) -> tuple[EnvSpec, Chunk]:
    """A specification and a valid chunk of it."""
    spec = draw(specs())
    return spec, draw(chunks(spec))


def cartpole_spec() -> EnvSpec:
    """The spaces of CartPole-v1."""
    high = np.array([4.8, np.inf, 0.42, np.inf], np.float32)
    return EnvSpec("CartPole-v1", Box(-high, high), Discrete(2), 475.0, 500)


def make_chunk(spec: EnvSpec, *, steps: int = 4, envs: int = 2, seed: int = 0) -> Chunk:
    """A valid chunk; in the middle one episode terminates, at the end another truncates."""
    rng = np.random.default_rng(seed)
    assert isinstance(spec.observation, Box)
    dtype, shape = spec.observation.dtype, spec.observation.shape
    terminated = np.zeros((steps, envs), np.bool_)
    truncated = np.zeros((steps, envs), np.bool_)
    terminated[steps // 2, 0] = True
    truncated[steps - 1, envs - 1] = True
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    if isinstance(spec.action, Discrete):
        actions: NDArray[Any] = rng.integers(0, spec.action.n, (steps, envs), np.int64)
    else:
        actions = rng.standard_normal((steps, envs, *spec.action.shape), np.float32)
    return Chunk(
        spec_fingerprint=spec.fingerprint,
        policy_version=7,
        policy_digest=DIGEST,
        first_step=96,
        observations=rng.integers(0, 100, (steps + 1, envs, *shape)).astype(dtype),
        actions=actions,
        log_probs=-rng.random((steps, envs), np.float32),
        rewards=np.ones((steps, envs), np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=ends,
        final_observations=rng.integers(0, 100, (ends.size, *shape)).astype(dtype),
        episodes=tuple(Episode(int(e) % envs, int(e) // envs, 21.5, 22) for e in ends),
    )


def make_envelope(body: bytes, *, device_id: str = "pi-1", seq: int = 12) -> Envelope:
    """An envelope of run `RUN_ID`."""
    return Envelope(key=ChunkKey(device_id, RUN_ID, seq), body=body, oldest_seq=max(0, seq - 2))
