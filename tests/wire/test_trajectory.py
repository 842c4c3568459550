"""Chunks and envelopes round-trip exactly, and every inconsistency is found."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import (
    NAMES,
    SEQS,
    cartpole_spec,
    make_chunk,
    make_envelope,
    rover_spec,
    specs_and_chunks,
)

from shoal import zstd
from shoal.episodes import Episode
from shoal.errors import ChunkRejected, LimitExceeded, WireError
from shoal.spaces import Box, Discrete, EnvSpec, MultiDiscrete, Tuple
from shoal.trajectory import (
    MAX_ENVELOPE_BYTES,
    Chunk,
    ChunkKey,
    Envelope,
    decode_chunk,
    decode_envelope,
    encode_chunk,
    encode_envelope,
)
from shoal.v1 import trajectory_pb2 as pb
from shoal.validation import validate_chunk
from shoal.wire import frame, unframe

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


@given(NAMES, st.binary(min_size=16, max_size=16), SEQS, SEQS, specs_and_chunks())
def test_any_envelope_round_trips(
    device: str, run_id: bytes, one: int, two: int, pair: tuple[EnvSpec, Chunk]
) -> None:
    envelope = Envelope(
        key=ChunkKey(device, run_id, max(one, two)),
        body=encode_chunk(pair[1]),
        oldest_seq=min(one, two),
    )
    assert decode_envelope(encode_envelope(envelope)) == envelope


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


@pytest.mark.parametrize(("seq", "oldest"), [(0, 1), (2**62, 0), (2**64 - 1, 0), (2**62, 2**62)])
def test_an_envelope_with_impossible_numbers_is_a_wire_error(seq: int, oldest: int) -> None:
    envelope = dataclasses.replace(make_envelope(encode_chunk(make_chunk(cartpole_spec()))))
    bad = dataclasses.replace(
        envelope, key=dataclasses.replace(envelope.key, seq=seq), oldest_seq=oldest
    )
    with pytest.raises(WireError, match="seq"):
        decode_envelope(encode_envelope(bad))


@pytest.mark.parametrize("run_id", [b"", bytes(15), bytes(17)])
def test_an_envelope_without_a_run_is_a_wire_error(run_id: bytes) -> None:
    envelope = make_envelope(encode_chunk(make_chunk(cartpole_spec())))
    key = dataclasses.replace(envelope.key, run_id=run_id)
    with pytest.raises(WireError, match="run_id"):
        decode_envelope(encode_envelope(dataclasses.replace(envelope, key=key)))


def test_refuses_to_send_a_chunk_that_is_too_large() -> None:
    noise = np.random.default_rng(0).bytes(MAX_ENVELOPE_BYTES)
    body = zstd.compress(noise, level=1, checksum=True)
    with pytest.raises(LimitExceeded, match="chunk_steps"):
        encode_envelope(make_envelope(body))


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


@given(specs_and_chunks(), SEQS)
def test_an_envelope_is_framed_as_any_message(pair: tuple[EnvSpec, Chunk], seq: int) -> None:
    body = encode_chunk(pair[1])
    whole = pb.TrajectoryEnvelope(
        device_id="pi-1",
        run_id=bytes(range(16)),
        seq=seq,
        codec=pb.CODEC_ZSTD,
        raw_bytes=zstd.content_size(body) or 0,
        body=body,
        oldest_seq=seq,
    )
    envelope = Envelope(ChunkKey("pi-1", bytes(range(16)), seq), body, seq)
    assert encode_envelope(envelope) == frame(whole)


def test_an_envelope_with_two_bodies_is_a_wire_error() -> None:
    body = encode_chunk(make_chunk(cartpole_spec()))
    message = unframe(pb.TrajectoryEnvelope, encode_envelope(make_envelope(body)))
    twice = message.SerializeToString() + pb.TrajectoryEnvelope(body=body).SerializeToString()
    framed = struct.pack("<3sBI", b"SHL", 1, zlib.crc32(twice)) + twice
    with pytest.raises(WireError, match="comes twice"):
        decode_envelope(framed)
