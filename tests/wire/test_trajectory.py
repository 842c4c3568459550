"""Chunks round-trip exactly, and every inconsistency is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import (
    cartpole_spec,
    make_chunk,
    specs_and_chunks,
)

from shoal.episodes import Episode
from shoal.errors import WireError
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.trajectory import Chunk, decode_chunk, encode_chunk
from shoal.validation import validate_chunk

COLUMNS = [
    field.name
    for field in dataclasses.fields(Chunk)
    if isinstance(getattr(make_chunk(cartpole_spec()), field.name), np.ndarray)
]


def assert_equal(left: Chunk, right: Chunk) -> None:
    for field in dataclasses.fields(Chunk):
        one, two = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == two.dtype, field.name
            assert one.shape == two.shape, field.name
            assert one.tobytes() == two.tobytes(), field.name
        else:
            assert one == two, field.name


@given(specs_and_chunks())
def test_any_chunk_round_trips_and_is_valid(pair: tuple[EnvSpec, Chunk]) -> None:
    spec, chunk = pair
    back = decode_chunk(encode_chunk(chunk))
    assert_equal(back, chunk)
    validate_chunk(back, spec)
    assert (back.steps, back.envs) == chunk.rewards.shape
    assert back.transitions == back.steps * back.envs


@given(specs_and_chunks())
def test_equal_chunks_give_equal_bytes(pair: tuple[EnvSpec, Chunk]) -> None:
    assert encode_chunk(pair[1]) == encode_chunk(decode_chunk(encode_chunk(pair[1])))


def test_images_stay_bytes_and_small() -> None:
    image = Box(np.zeros((84, 84, 4), np.uint8), np.full((84, 84, 4), 255, np.uint8))
    spec = EnvSpec("Atari", image, Discrete(6))
    chunk = make_chunk(spec, steps=8, envs=1)
    body = encode_chunk(chunk)
    assert decode_chunk(body).observations.dtype == np.uint8
    assert len(body) < chunk.observations.nbytes + chunk.final_observations.nbytes + 4096


def change(name: str, array: NDArray[Any]) -> Chunk:
    return dataclasses.replace(make_chunk(cartpole_spec()), **{name: array})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_length_is_a_wire_error(name: str) -> None:
    column = getattr(make_chunk(cartpole_spec()), name)
    for wrong in (column[:-1], np.concatenate([column, column[:1]]), column[:, None], column[0]):
        with pytest.raises(WireError):
            decode_chunk(encode_chunk(change(name, np.asarray(wrong))))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_dtype_is_refused(name: str) -> None:
    column = getattr(make_chunk(cartpole_spec()), name)
    wrong = column.astype(np.int16 if column.dtype != np.int16 else np.int8)
    with pytest.raises(WireError):
        validate_chunk(decode_chunk(encode_chunk(change(name, wrong))), cartpole_spec())


@pytest.mark.parametrize(
    "index", [[-1, 7], [4, 4], [7, 4], [4, 8], [4], [4, 6], [4, 2**31 - 1], [0, 4, 7], []]
)
def test_a_final_index_that_lies_is_a_wire_error(index: list[int]) -> None:
    with pytest.raises(WireError, match="final"):
        decode_chunk(encode_chunk(change("final_index", np.array(index, np.int32))))


GOOD = make_chunk(cartpole_spec()).episodes


@pytest.mark.parametrize(
    "episodes",
    [
        (),
        GOOD[:1],
        GOOD[::-1],
        (*GOOD, GOOD[0]),
        (GOOD[0]._replace(step=1, env=2), GOOD[1]),  # the same flat index
        (GOOD[0]._replace(step=0, env=4), GOOD[1]),
        (GOOD[0]._replace(env=2**32 - 1), GOOD[1]),
        (GOOD[0]._replace(length=0), GOOD[1]),
        (GOOD[0]._replace(length=2**63), GOOD[1]),
        (GOOD[0]._replace(total_return=float("nan")), GOOD[1]),
        (GOOD[0]._replace(total_return=float("inf")), GOOD[1]),
    ],
)
def test_episodes_that_lie_are_a_wire_error(episodes: tuple[Episode, ...]) -> None:
    chunk = dataclasses.replace(make_chunk(cartpole_spec()), episodes=episodes)
    with pytest.raises(WireError, match="episode"):
        decode_chunk(encode_chunk(chunk))


@pytest.mark.parametrize("field", ["spec_fingerprint", "policy_digest"])
@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33)])
def test_digests_are_32_bytes(field: str, digest: bytes) -> None:
    chunk = dataclasses.replace(make_chunk(cartpole_spec()), **{field: digest})  # type: ignore[arg-type]
    with pytest.raises(WireError, match="32 bytes"):
        decode_chunk(encode_chunk(chunk))


@given(specs_and_chunks(), st.data())
def test_a_body_with_a_flipped_bit_never_decodes_to_another_chunk(
    pair: tuple[EnvSpec, Chunk], data: st.DataObject
) -> None:
    chunk = pair[1]
    body = bytearray(encode_chunk(chunk))
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    try:
        found = decode_chunk(bytes(body))
    except WireError:
        return
    # Some bits of a frame header mean nothing; what they leave must be the very same chunk.
    assert encode_chunk(found) == encode_chunk(chunk)
