"""Chunks that decode, and that no learner may train from: every rule, and its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from strategies import (
    cartpole_spec,
    make_chunk,
    rover_spec,
)

from shoal.errors import ChunkRejected, WireError
from shoal.spaces import Box, Discrete, EnvSpec, MultiDiscrete, Tuple
from shoal.trajectory import (
    Chunk,
    decode_chunk,
    encode_chunk,
)
from shoal.validation import validate_chunk


def change(name: str, array: NDArray[Any]) -> Chunk:
    return dataclasses.replace(make_chunk(cartpole_spec()), **{name: array})  # type: ignore[arg-type]


def reason(chunk: Chunk, spec: EnvSpec) -> str:
    with pytest.raises(ChunkRejected) as caught:
        validate_chunk(chunk, spec)
    return caught.value.reason


def test_rejects_a_chunk_of_other_spaces() -> None:
    other = dataclasses.replace(cartpole_spec(), action=Discrete(3))
    assert reason(make_chunk(other), cartpole_spec()) == "fingerprint"


@pytest.mark.parametrize("name", ["observations", "final_observations", "log_probs", "rewards"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rejects_a_value_that_is_not_finite(name: str, value: float) -> None:
    column = getattr(make_chunk(cartpole_spec()), name).copy()
    column.reshape(-1)[-1] = value
    assert reason(change(name, column), cartpole_spec()) == "non_finite"


STATE = np.zeros((2, 3), np.float32)
ERRORS = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("initial_state", STATE[:1]),
        ("initial_state", STATE[:, :0]),
        ("initial_state", STATE[0]),
        ("initial_state", STATE[..., None]),
        ("initial_state", STATE.astype(np.float64)),
        ("priorities", ERRORS[:3]),
        ("priorities", ERRORS[:, :1]),
        ("priorities", ERRORS.astype(np.float16)),
    ],
)
def test_a_state_or_priorities_that_do_not_fit_are_a_wire_error(
    name: str, wrong: NDArray[Any]
) -> None:
    with pytest.raises(WireError, match=name):
        decode_chunk(encode_chunk(change(name, wrong)))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("initial_state", np.nan, "non_finite"),
        ("initial_state", np.inf, "non_finite"),
        ("priorities", np.nan, "non_finite"),
        ("priorities", np.inf, "non_finite"),
        ("priorities", -1e-9, "index"),
    ],
)
def test_rejects_a_state_or_priority_that_nobody_can_use(
    name: str, value: float, said: str
) -> None:
    good = {"initial_state": STATE, "priorities": ERRORS}[name]
    validate_chunk(change(name, good), cartpole_spec())
    bad = good.copy()
    bad[-1, -1] = value
    assert reason(change(name, bad), cartpole_spec()) == said


ROVER = rover_spec()
# Bytes before arm.0, arm.1, camera, doors and grid: 0, 24, 32, 224 and 226.


@pytest.mark.parametrize("name", ["observations", "final_observations"])
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, np.float64(np.nan), "non_finite"),
        (0, np.float64(-np.inf), "non_finite"),
        (24, np.int64(4), "index"),
        (24, np.int64(-1), "index"),
        (225, np.int8(2), "index"),
        (225, np.int8(-1), "index"),
        (226, np.int64(3), "index"),
        (226, np.int64(-(2**63)), "index"),
    ],
)
def test_rejects_a_leaf_of_packed_observations_out_of_its_space(
    name: str, place: int, value: np.generic, said: str
) -> None:
    chunk = make_chunk(ROVER)
    validate_chunk(chunk, ROVER)
    rows = getattr(chunk, name).copy()
    raw = np.frombuffer(value.tobytes(), np.uint8)
    rows[-1, ..., place : place + raw.size] = raw
    assert reason(dataclasses.replace(chunk, **{name: rows}), ROVER) == said


def test_any_camera_picture_of_packed_observations_is_accepted() -> None:
    chunk = make_chunk(ROVER)
    rows = chunk.observations.copy()
    rows[..., 32:224] = 255
    validate_chunk(dataclasses.replace(chunk, observations=rows), ROVER)


def test_rejects_packed_rows_of_another_width() -> None:
    chunk = make_chunk(ROVER)
    for width in (slice(None, -1), slice(1, None)):
        cut = dataclasses.replace(
            chunk,
            observations=chunk.observations[..., width],
            final_observations=chunk.final_observations[..., width],
        )
        assert reason(cut, ROVER) == "shape"


def test_rejects_a_packed_bool_that_is_neither_0_nor_1() -> None:
    flag = Box(np.zeros(2, np.bool_), np.ones(2, np.bool_))
    spec = EnvSpec("flags", Tuple((flag,)), Discrete(2))
    chunk = make_chunk(spec)
    rows = chunk.observations % 2
    validate_chunk(dataclasses.replace(chunk, observations=rows), spec)
    rows[1, 1, 1] = 2
    assert reason(dataclasses.replace(chunk, observations=rows), spec) == "index"


@pytest.mark.parametrize(
    ("number", "value", "said"),
    [
        (0, 2, "index"),  # of 2, 3, 4 and 5 values
        (1, 2, None),
        (1, 3, "index"),
        (3, 4, None),
        (3, 5, "index"),
        (2, -1, "index"),
        (2, 1.5, "index"),
        (2, np.nan, "non_finite"),
        (4, 1.5, None),  # the wheels: raw numbers
        (4, -77, None),
        (5, np.inf, "non_finite"),
    ],
)
def test_numbers_of_a_mixed_action_are_whole_and_in_range_where_they_are_discrete(
    number: int, value: float, said: str | None
) -> None:
    chunk = make_chunk(ROVER)
    actions = chunk.actions.copy()
    actions[-1, -1, number] = value
    changed = dataclasses.replace(chunk, actions=actions)
    if said is None:
        validate_chunk(changed, ROVER)
    else:
        assert reason(changed, ROVER) == said


@pytest.mark.parametrize(("place", "value"), [((0, 0), 2), ((0, 1), 3), ((1, 1), 5), ((1, 0), -1)])
def test_each_element_of_a_multi_discrete_action_has_a_range_of_its_own(
    place: tuple[int, int], value: int
) -> None:
    gears = MultiDiscrete(np.array([[2, 3], [4, 5]]), np.zeros((2, 2), np.int64))
    spec = EnvSpec("gears", gears, gears)
    chunk = make_chunk(spec)
    validate_chunk(chunk, spec)
    for name in ("actions", "observations"):
        array = getattr(chunk, name).copy()
        array[(-1, -1, *place)] = value
        assert reason(dataclasses.replace(chunk, **{name: array}), spec) == "index"


def test_rejects_a_continuous_action_that_is_not_finite() -> None:
    spec = dataclasses.replace(cartpole_spec(), action=Box(-np.ones(2, "f4"), np.ones(2, "f4")))
    chunk = make_chunk(spec)
    validate_chunk(chunk, spec)
    actions = chunk.actions.copy()
    actions[0, 0, 0] = np.nan
    assert reason(dataclasses.replace(chunk, actions=actions), spec) == "non_finite"


def test_accepts_a_raw_action_beyond_its_bounds() -> None:
    spec = dataclasses.replace(cartpole_spec(), action=Box(-np.ones(2, "f4"), np.ones(2, "f4")))
    chunk = make_chunk(spec)
    validate_chunk(dataclasses.replace(chunk, actions=chunk.actions * 0 + 9), spec)


@pytest.mark.parametrize("action", [-1, 2, 2**62, -(2**63)])
def test_rejects_an_action_out_of_its_space(action: int) -> None:
    actions = make_chunk(cartpole_spec()).actions.copy()
    actions[0, 0] = action
    assert reason(change("actions", actions), cartpole_spec()) == "index"


def test_rejects_other_dtypes_and_shapes_though_the_fingerprint_is_right() -> None:
    spec, chunk = cartpole_spec(), make_chunk(cartpole_spec())
    wide = dataclasses.replace(
        chunk,
        observations=chunk.observations.astype(np.float64),
        final_observations=chunk.final_observations.astype(np.float64),
    )
    assert reason(wide, spec) == "dtype"
    cut = dataclasses.replace(
        chunk,
        observations=chunk.observations[..., :3],
        final_observations=chunk.final_observations[..., :3],
    )
    assert reason(cut, spec) == "shape"
    assert reason(change("actions", chunk.actions.astype(np.int32)), spec) == "dtype"
    assert reason(change("actions", chunk.actions[..., None]), spec) == "shape"
