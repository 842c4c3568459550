"""Envelopes round-trip exactly, and what is wrong with one is found."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    NAMES,
    SEQS,
    cartpole_spec,
    make_chunk,
    make_envelope,
    specs_and_chunks,
)

from shoal import zstd
from shoal.envelope import MAX_ENVELOPE_BYTES, ChunkKey, Envelope, decode_envelope, encode_envelope
from shoal.errors import LimitExceeded, WireError
from shoal.packing import Packing
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk, encode_chunk, encode_columns
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import frame, unframe


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


@given(specs_and_chunks())
def test_a_body_of_columns_is_summed_up_once_and_its_frame_is_the_same(
    pair: tuple[EnvSpec, Chunk],
) -> None:
    envelope = make_envelope(encode_columns(pair[1], Packing()))
    data = encode_envelope(envelope)
    assert decode_envelope(data) == envelope
    assert data == frame(unframe(pb.TrajectoryEnvelope, data))


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
