"""Chunks as columns: they come out as they went in, whatever form each column took."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import arrays, cartpole_spec, dtypes, make_chunk, make_envelope, specs_and_chunks
from wire.column_samples import chunk_of_every_form, column_chunk
from wire.test_hostile_bytes import damaged, value_or_wire_error
from wire.test_trajectory import assert_equal

from shoal import zstd
from shoal.columns import NAMES, OPTIONAL, read_columns, write_columns
from shoal.envelope import decode_envelope, encode_envelope
from shoal.errors import LimitExceeded, WireError
from shoal.packing import BALANCED, SMALLEST, Compression, Packing
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.trajectory import Chunk, decode_chunk, encode_chunk, encode_columns
from shoal.v1 import columns_pb2 as pb
from shoal.v1 import trajectory_pb2
from shoal.validation import validate_chunk

SPEC = cartpole_spec()
PACKINGS = st.sampled_from([BALANCED, SMALLEST, Compression(-1000.0, -10_000, 1)])


def sealed(message: pb.ColumnChunk) -> bytes:
    """A body of this content, under a checksum that matches."""
    message.ClearField("checksum")
    raw = message.SerializeToString()
    return raw + b"\x4d" + zlib.crc32(raw).to_bytes(4, "little")


@given(specs_and_chunks(), PACKINGS)
def test_any_chunk_round_trips_and_is_valid(
    pair: tuple[EnvSpec, Chunk], compression: Compression
) -> None:
    spec, chunk = pair
    packing = Packing(compression)
    for _ in range(2):  # what is known of the chunk before decides about the next
        back = decode_chunk(encode_columns(chunk, packing))
        assert_equal(back, chunk)
        validate_chunk(back, spec)


@given(specs_and_chunks())
def test_equal_chunks_give_equal_bytes_whichever_form_they_had(
    pair: tuple[EnvSpec, Chunk],
) -> None:
    again = decode_chunk(encode_chunk(pair[1]))
    assert encode_columns(again, Packing()) == encode_columns(pair[1], Packing())
    again = decode_chunk(encode_columns(pair[1], Packing()))
    assert encode_chunk(again) == encode_chunk(pair[1])


def test_arrays_cannot_be_written_to() -> None:
    chunk = decode_chunk(encode_columns(chunk_of_every_form(), Packing(SMALLEST)))
    for field in dataclasses.fields(Chunk):
        array = getattr(chunk, field.name)
        if isinstance(array, np.ndarray):
            assert not array.flags.writeable, field.name
            assert array.flags.aligned, field.name


def test_each_form_is_taken_where_it_is_worth_it() -> None:
    body = encode_columns(chunk_of_every_form(), Packing(SMALLEST))
    layout = pb.ColumnChunk.FromString(body).layout
    forms = {name: getattr(layout, name).form for name in NAMES}
    assert set(forms.values()) == {
        pb.COLUMN_FORM_PLAIN,
        pb.COLUMN_FORM_ZSTD,
        pb.COLUMN_FORM_CONSTANT,
        pb.COLUMN_FORM_BITS,
        pb.COLUMN_FORM_PLANES,
    }
    assert forms["rewards"] == pb.COLUMN_FORM_CONSTANT
    assert forms["actions"] == forms["terminated"] == pb.COLUMN_FORM_BITS
    assert layout.priorities.stored


def test_the_layout_of_chunks_of_equal_kind_is_the_same_to_the_byte() -> None:
    packing = Packing()
    layouts = {
        pb.ColumnChunk.FromString(
            encode_columns(make_chunk(SPEC, seed=seed), packing)
        ).layout.SerializeToString(deterministic=True)
        for seed in range(3)
    }
    assert len(layouts) == 1


@given(specs_and_chunks(), st.data())
def test_a_body_with_a_flipped_bit_never_decodes(
    pair: tuple[EnvSpec, Chunk], data: st.DataObject
) -> None:
    body = bytearray(encode_columns(pair[1], Packing()))
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        decode_chunk(bytes(body))


def test_a_body_that_a_disk_changed_is_not_sent() -> None:
    body = bytearray(column_chunk())
    body[len(body) // 2] ^= 1
    with pytest.raises(WireError, match="damaged"):
        encode_envelope(make_envelope(bytes(body)))


def test_an_envelope_says_how_its_body_was_written() -> None:
    for body, codec in (
        (encode_chunk(make_chunk(SPEC)), trajectory_pb2.CODEC_ZSTD),
        (column_chunk(), trajectory_pb2.CODEC_COLUMNS),
    ):
        framed = encode_envelope(make_envelope(body))
        assert trajectory_pb2.TrajectoryEnvelope.FromString(framed[8:]).codec == codec
        assert decode_envelope(framed).body == body


@given(st.data())
def test_a_damaged_body_under_a_valid_checksum_is_a_chunk_or_a_wire_error(
    data: st.DataObject,
) -> None:
    whole = encode_columns(chunk_of_every_form(), Packing(SMALLEST))[:-5]
    raw = data.draw(damaged(whole))
    body = raw + b"\x4d" + zlib.crc32(raw).to_bytes(4, "little")
    value_or_wire_error(lambda data: validate_chunk(decode_chunk(data), SPEC), body)


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(
            st.integers(0, 13),
            st.integers(0, 13),
            st.integers(0, 6),
            st.lists(st.sampled_from([0, 1, 2, 3, 4, 2**31, 2**32 - 1]), max_size=9),
        ),
        min_size=1,
    ),
    st.sampled_from([0, 1, 2, 3, 2**31, 2**32 - 1]),
    st.sampled_from([None, 0, 1, 4, 2**31, 2**32 - 1]),
)
def test_columns_of_any_layout_are_a_chunk_or_a_wire_error(
    changes: dict[str, tuple[int, int, int, list[int]]], ends: int, steps: int | None
) -> None:
    message = pb.ColumnChunk.FromString(column_chunk())
    message.ends = ends
    if steps is not None:
        message.layout.steps = steps
    for name, (dtype, stored, form, shape) in changes.items():
        column = getattr(message.layout, name)
        column.MergeFromString(bytes([0x08, dtype, 0x18, form, 0x20, stored]))
        del column.shape[:]
        column.shape.extend(shape)
    value_or_wire_error(lambda data: validate_chunk(decode_chunk(data), SPEC), sealed(message))


def lay(change: Callable[[pb.ColumnChunk], object]) -> bytes:
    message = pb.ColumnChunk.FromString(column_chunk())
    change(message)
    return sealed(message)


def test_what_says_that_it_is_too_large_is_refused_before_anything_is_made() -> None:
    def one_value_for_all(message: pb.ColumnChunk) -> None:
        message.layout.steps = 2**30
        for name in NAMES:
            if message.layout.HasField(name):
                getattr(message.layout, name).form = pb.COLUMN_FORM_CONSTANT
        message.data = bytes(4096)

    with pytest.raises(LimitExceeded, match="once opened"):
        decode_chunk(lay(one_value_for_all))
    body = column_chunk()
    size = sum(
        getattr(decode_chunk(body), name).nbytes
        for name in ("observations", "actions", "log_probs", "rewards", "final_observations")
    )
    with pytest.raises(LimitExceeded, match="once opened"):
        decode_chunk(body, max_bytes=size)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.ClearField("layout"), "T, N"),
        (lambda m: setattr(m.layout, "steps", 0), "T, N"),
        (lambda m: m.layout.ClearField("rewards"), "missing"),
        (lambda m: setattr(m, "ends", 1), "episodes"),
        (lambda m: setattr(m, "ends", 9), "episodes"),
        (lambda m: m.frame_bytes.append(3), "frames"),
        (lambda m: setattr(m, "data", m.data + b"\0"), "bytes"),
        (lambda m: setattr(m, "data", m.data[:-1]), "bytes"),
        (lambda m: setattr(m, "spec_fingerprint", bytes(31)), "32 bytes"),
        (lambda m: setattr(m, "policy_digest", bytes(31)), "32 bytes"),
        (lambda m: setattr(m, "first_step", 2**62), "out of range"),
        (lambda m: setattr(m.layout.rewards, "dtype", 1), "float32"),
        (lambda m: setattr(m.layout.rewards, "form", 4), "bits"),
        (lambda m: setattr(m.layout.rewards, "form", 77), "unknown form"),
        (lambda m: setattr(m.layout.rewards, "stored", 10), "cannot lie"),
        (lambda m: m.layout.rewards.shape.append(1), "number"),
        (lambda m: m.layout.final_observations.shape.append(1), "shaped like"),
        (lambda m: m.layout.initial_state.MergeFromString(b"\x08\x09\x18\x01"), "initial_state"),
    ],
)
def test_a_layout_that_lies_is_a_wire_error(change: Callable[[Any], object], words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode_chunk(lay(change))


def test_a_frame_of_another_size_than_its_column_is_a_wire_error() -> None:
    body = encode_columns(chunk_of_every_form(), Packing(SMALLEST))
    message = pb.ColumnChunk.FromString(body)
    assert message.frame_bytes
    first = sum(message.frame_bytes)
    for raw in (b"", bytes(7), bytes(2**20)):
        frame = zstd.compress(raw, level=1)
        lying = pb.ColumnChunk.FromString(body)
        lying.data = message.data[:-first] + frame * len(message.frame_bytes)
        lying.frame_bytes[:] = [len(frame)] * len(message.frame_bytes)
        with pytest.raises(WireError, match="decompressed"):
            decode_chunk(sealed(lying))


@given(st.data())
def test_columns_of_any_dtype_come_out_to_the_bit(data: st.DataObject) -> None:
    """NaN, -0 and what is not aligned included; observations alone may be of any dtype."""
    dtype = data.draw(dtypes)
    chunk = {name: getattr(make_chunk(SPEC), name, None) for name in NAMES}
    given_arrays: dict[str, Array] = {
        name: array for name, array in chunk.items() if array is not None
    }
    given_arrays["episode_returns"] = np.array([1.0, -0.0])
    given_arrays["episode_lengths"] = np.array([1, 300])
    given_arrays["observations"] = data.draw(arrays((5, 2, 3), dtype))
    given_arrays["final_observations"] = data.draw(arrays((2, 3), dtype))
    packed = Packing(data.draw(PACKINGS)).pack(given_arrays)
    written = write_columns(given_arrays, packed, steps=4, envs=2)
    shifted = memoryview(b"x" + written.data)[1:]
    back = read_columns(
        written.layout.SerializeToString(), 2, written.frame_bytes, shifted, max_bytes=1 << 20
    )
    assert set(back) == set(NAMES) - OPTIONAL
    for name, array in given_arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape), name
        assert back[name].tobytes() == array.tobytes(), name


def test_large_columns_share_the_bytes_they_came_in() -> None:
    chunk = make_chunk(SPEC, steps=30_000)
    noise = np.random.default_rng(0).standard_normal(chunk.observations.shape)
    chunk = dataclasses.replace(chunk, observations=noise.astype(np.float32))
    body = encode_columns(chunk, Packing())
    back = decode_chunk(body)
    assert_equal(back, chunk)
