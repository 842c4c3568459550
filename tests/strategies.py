"""Hypothesis strategies and builders of wire values, shared by all tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shoal.envelope import ChunkKey, Envelope
from shoal.episodes import Episode
from shoal.layout import ActionLayout, Field, ObservationLayout
from shoal.spaces import (
    Box,
    Dict,
    Discrete,
    EnvSpec,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    unbounded,
)
from shoal.tensors import DTYPES, Array
from shoal.trajectory import Chunk

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


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscrete:
    """Discrete values side by side, in arrays of up to three axes."""
    shape = draw(SHAPES)
    nvec = draw(hnp.arrays(np.int64, shape, elements=st.integers(1, 5)))
    start = draw(hnp.arrays(np.int64, shape, elements=st.integers(-3, 3)))
    return MultiDiscrete(nvec, start)


def leaves() -> st.SearchStrategy[Leaf]:
    """Spaces that hold no others."""
    return st.one_of(
        st.builds(Discrete, st.integers(1, 9), st.integers(-5, 5)),
        boxes(),
        multi_discretes(),
        st.builds(MultiBinary, SHAPES),
    )


def _dict(items: dict[str, Space]) -> Dict:
    return Dict(tuple(sorted(items.items())))


def nested() -> st.SearchStrategy[Space]:
    """Dict and Tuple of any spaces, Dict and Tuple among them."""
    keys = st.sampled_from(["arm", "a b", "camera", "\u00fc", "0"])
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.dictionaries(keys, inner, min_size=1, max_size=3).map(_dict),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: Tuple(tuple(items))),
        ),
        max_leaves=4,
    )


def spaces() -> st.SearchStrategy[Space]:
    """Any space, nested ones too."""
    return st.one_of(leaves(), nested())


@st.composite
def specs(draw: st.DrawFn) -> EnvSpec:
    """Environment specifications."""
    return EnvSpec(
        env_id=draw(st.text(max_size=20)),
        observation=draw(spaces()),
        action=draw(spaces()),
        reward_threshold=draw(st.none() | st.floats(allow_nan=False)),
        max_episode_steps=draw(st.none() | st.integers(1, 2**32 - 1)),
    )


def values(space: Leaf, field: Field, lead: tuple[int, ...]) -> st.SearchStrategy[Array]:
    """What a chunk may hold of one leaf, `[*lead, *shape]`."""
    shape = (*lead, *field.shape)
    match space:
        case Discrete(n=n):
            counted = hnp.arrays(np.int64, shape, elements=st.integers(0, n - 1))
        case MultiDiscrete(nvec=nvec):
            picks = hnp.arrays(np.int64, shape, elements=st.integers(0, 4))
            counted = picks.map(lambda pick: pick % nvec)
        case MultiBinary():
            counted = hnp.arrays(np.int8, shape, elements=st.integers(0, 1))
        case Box():
            return finite(shape, field.dtype)
    return counted


@st.composite
def observations(draw: st.DrawFn, space: Space, lead: tuple[int, ...]) -> Array:
    """What a chunk may hold of an observation space, `[*lead, *shape]`."""
    layout = ObservationLayout.of(space)
    return layout.pack({f.path: draw(values(f.space, f, lead)) for f in layout.fields})


@st.composite
def actions(draw: st.DrawFn, space: Space, lead: tuple[int, ...]) -> Array:
    """What a chunk may hold of an action space, `[*lead, *shape]`: not within a Box's bounds."""
    layout = ActionLayout.of(space)
    columns: list[Array] = []
    for choice in layout.choices:
        columns += [
            draw(hnp.arrays(np.int64, lead, elements=st.integers(0, n - 1))) for n in choice.values
        ]
        if not choice.values:
            box = draw(finite((*lead, choice.size), np.dtype(np.float32)))
            columns += list(np.moveaxis(box, -1, 0))
    return np.stack(columns, axis=-1).astype(layout.dtype).reshape(*lead, *layout.shape)


@st.composite
def chunks(draw: st.DrawFn, spec: EnvSpec) -> Chunk:
    """Valid chunks of a specification: any T, N, ends of episodes, and finite values."""
    steps, envs = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    terminated = draw(hnp.arrays(np.bool_, (steps, envs)))
    truncated = draw(hnp.arrays(np.bool_, (steps, envs)))
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    f4 = np.dtype(np.float32)
    state = finite((envs, draw(st.integers(1, 3))), f4)
    return Chunk(
        spec_fingerprint=spec.fingerprint,
        policy_version=draw(SEQS),
        policy_digest=draw(st.binary(min_size=32, max_size=32)),
        first_step=draw(SEQS),
        observations=draw(observations(spec.observation, (steps + 1, envs))),
        actions=draw(actions(spec.action, (steps, envs))),
        log_probs=draw(finite((steps, envs), f4)),
        rewards=draw(finite((steps, envs), f4)),
        terminated=terminated,
        truncated=truncated,
        final_index=ends,
        final_observations=draw(observations(spec.observation, (ends.size,))),
        episodes=tuple(
            Episode(
                env=int(end) % envs,
                step=int(end) // envs,
                total_return=draw(st.floats(allow_nan=False, allow_infinity=False)),
                length=draw(st.integers(1, 2**40)),
            )
            for end in ends
        ),
        initial_state=draw(st.none() | state),
        priorities=draw(st.none() | finite((steps, envs), f4).map(np.abs)),
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


def rover_spec() -> EnvSpec:
    """A nested environment: a camera beside sensors, wheels beside an arm."""
    observation = Dict(
        (
            ("arm", Tuple((unbounded((3,), np.float64), Discrete(4, start=-1)))),
            ("camera", Box(np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8))),
            ("doors", MultiBinary((2,))),
            ("grid", MultiDiscrete(np.full((2, 2), 3), np.array([[0, 1], [2, 3]]))),
        )
    )
    wheels = Box(-np.ones(2, np.float32), np.ones(2, np.float32))
    gears = MultiDiscrete(np.array([[2, 3], [4, 5]]), np.zeros((2, 2), np.int64))
    return EnvSpec("Rover-v0", observation, Dict((("gears", gears), ("wheels", wheels))))


def make_chunk(spec: EnvSpec, *, steps: int = 4, envs: int = 2, seed: int = 0) -> Chunk:
    """A valid chunk; in the middle one episode terminates, at the end another truncates."""
    rng = np.random.default_rng(seed)
    terminated = np.zeros((steps, envs), np.bool_)
    truncated = np.zeros((steps, envs), np.bool_)
    terminated[steps // 2, 0] = True
    truncated[steps - 1, envs - 1] = True
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    return Chunk(
        spec_fingerprint=spec.fingerprint,
        policy_version=7,
        policy_digest=DIGEST,
        first_step=96,
        actions=some_actions(spec.action, (steps, envs), rng),
        observations=some_observations(spec.observation, (steps + 1, envs), rng),
        log_probs=-rng.random((steps, envs), np.float32),
        rewards=np.ones((steps, envs), np.float32),
        terminated=terminated,
        truncated=truncated,
        final_index=ends,
        final_observations=some_observations(spec.observation, (ends.size,), rng),
        episodes=tuple(Episode(int(e) % envs, int(e) // envs, 21.5, 22) for e in ends),
    )


def some_observations(space: Space, lead: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Valid observations `[*lead, *shape]`; of a Box whole numbers from 0 to 99."""
    layout = ObservationLayout.of(space)
    leaves: dict[str, Array] = {}
    for field in layout.fields:
        high: Any = 100
        match field.space:
            case Discrete(n=n):
                high = n
            case MultiDiscrete(nvec=nvec):
                high = nvec
            case MultiBinary():
                high = 2
            case Box():
                pass
        leaves[field.path] = rng.integers(0, high, (*lead, *field.shape)).astype(field.dtype)
    return layout.pack(leaves)


def some_actions(space: Space, lead: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Valid actions `[*lead, *shape]`; of a Box unit normal numbers."""
    layout = ActionLayout.of(space)
    columns = [
        rng.integers(0, choice.values, (*lead, choice.size), np.int64)
        if choice.values
        else rng.standard_normal((*lead, choice.size), np.float32)
        for choice in layout.choices
    ]
    flat: Array = np.concatenate(columns, axis=-1).astype(layout.dtype)
    return flat.reshape(*lead, *layout.shape)


def make_envelope(body: bytes, *, device_id: str = "pi-1", seq: int = 12) -> Envelope:
    """An envelope of run `RUN_ID`."""
    return Envelope(key=ChunkKey(device_id, RUN_ID, seq), body=body, oldest_seq=max(0, seq - 2))
