"""Episodes of a chunk: as columns, as tuples, and as devices wrote them before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk, specs_and_chunks

from shoal import zstd
from shoal.episodes import Episode, Episodes
from shoal.errors import WireError
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk, decode_chunk, encode_chunk
from shoal.v1 import trajectory_pb2 as pb

GOOD = tuple(make_chunk(cartpole_spec()).episodes)


def message_of(chunk: Chunk) -> pb.TrajectoryChunk:
    body = encode_chunk(chunk)
    return pb.TrajectoryChunk.FromString(zstd.decompress(body, zstd.content_size(body) or 0))


def body_of(message: pb.TrajectoryChunk) -> bytes:
    return zstd.compress(message.SerializeToString(), level=3, checksum=True)


def one_by_one(chunk: Chunk, episodes: Sequence[Episode]) -> bytes:
    """A chunk as it was written before episodes were columns."""
    message = message_of(chunk)
    message.ClearField("episode_returns")
    message.ClearField("episode_lengths")
    for each in episodes:
        message.episodes.add(
            env=each.env, step=each.step, total_return=each.total_return, length=each.length
        )
    return body_of(message)


@given(specs_and_chunks())
def test_what_was_written_one_by_one_reads_the_same(pair: tuple[EnvSpec, Chunk]) -> None:
    chunk = pair[1]
    assert decode_chunk(one_by_one(chunk, chunk.episodes)).episodes == chunk.episodes


@pytest.mark.parametrize(
    "episodes",
    [
        (),
        GOOD[:1],
        GOOD[::-1],
        (*GOOD, GOOD[0]),
        (GOOD[0]._replace(step=1, env=2), GOOD[1]),  # the same flat index
        (GOOD[0]._replace(env=2**32 - 1), GOOD[1]),
        (GOOD[0]._replace(length=0), GOOD[1]),
        (GOOD[0]._replace(length=2**63), GOOD[1]),
        (GOOD[0]._replace(total_return=float("nan")), GOOD[1]),
    ],
)
def test_what_was_written_one_by_one_and_lies_is_a_wire_error(
    episodes: tuple[Episode, ...],
) -> None:
    with pytest.raises(WireError, match="episode"):
        decode_chunk(one_by_one(make_chunk(cartpole_spec()), episodes))


def test_episodes_that_come_both_ways_are_a_wire_error() -> None:
    message = message_of(make_chunk(cartpole_spec()))
    message.episodes.add(env=0, step=0, total_return=1.0, length=1)
    with pytest.raises(WireError, match="one by one"):
        decode_chunk(body_of(message))


@pytest.mark.parametrize("name", ["episode_returns", "episode_lengths"])
def test_a_column_of_episodes_alone_is_a_wire_error(name: str) -> None:
    message = message_of(make_chunk(cartpole_spec()))
    message.ClearField(name)
    with pytest.raises(WireError, match="one by one"):
        decode_chunk(body_of(message))


@pytest.mark.parametrize(
    ("returns", "lengths"),
    [
        (np.ones(1), np.ones(2, np.int64)),
        (np.ones(2), np.ones(3, np.int64)),
        (np.ones((2, 1)), np.ones((2, 1), np.int64)),
        (np.ones(2, np.float32), np.ones(2, np.int64)),
        (np.ones(2), np.ones(2, np.int32)),
        (np.ones(2), np.zeros(2, np.int64)),
        (np.ones(2), np.full(2, -1, np.int64)),
        (np.ones(2), np.full(2, 2**62, np.int64)),
        (np.array([np.inf, 0.0]), np.ones(2, np.int64)),
    ],
)
def test_columns_of_episodes_that_lie_are_a_wire_error(
    returns: np.ndarray,
    lengths: np.ndarray,
) -> None:
    chunk = make_chunk(cartpole_spec())
    lying = Episodes(chunk.final_index, envs=chunk.envs, returns=returns, lengths=lengths)
    with pytest.raises(WireError, match="episode"):
        decode_chunk(encode_chunk(dataclasses.replace(chunk, episodes=lying)))


@given(st.integers(-3, 3), st.slices(2))
def test_columns_of_episodes_are_a_sequence_like_their_tuple(index: int, some: slice) -> None:
    columns = decode_chunk(encode_chunk(make_chunk(cartpole_spec()))).episodes
    assert isinstance(columns, Episodes)
    assert (len(columns), list(columns), columns[some]) == (2, list(GOOD), GOOD[some])
    assert columns == GOOD
    assert columns != GOOD[:1]
    if -2 <= index < 2:
        assert columns[index] == GOOD[index]
    else:
        with pytest.raises(IndexError):
            columns[index]
