"""Fields that stay where they are leave the rest of a message as a parser finds it."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import take_fields

BODY = pb.TrajectoryEnvelope.BODY_FIELD_NUMBER
NUMBERS = st.integers(0, 70).flatmap(lambda bits: st.integers(0, min(2**bits, 2**64) - 1))

ENVELOPES = st.builds(
    pb.TrajectoryEnvelope,
    device_id=st.text(max_size=200),
    run_id=st.binary(max_size=20),
    seq=NUMBERS,
    codec=st.sampled_from([0, 1, 2, 127, 128, 2**20]),
    raw_bytes=NUMBERS,
    body=st.binary(min_size=1, max_size=300),
    oldest_seq=NUMBERS,
)


@given(ENVELOPES, st.sampled_from([bytes, memoryview]))
def test_what_is_taken_and_what_is_left_is_the_message(
    envelope: pb.TrajectoryEnvelope, kind: type[bytes | memoryview]
) -> None:
    data = envelope.SerializeToString()
    rest, found = take_fields(pb.TrajectoryEnvelope, kind(data), (BODY,))
    assert bytes(found[BODY]) == envelope.body
    envelope.ClearField("body")
    assert rest == envelope


@given(ENVELOPES, st.data())
def test_a_message_that_was_cut_or_damaged_is_what_a_parser_takes_it_for_or_a_wire_error(
    envelope: pb.TrajectoryEnvelope, data: st.DataObject
) -> None:
    raw = bytearray(envelope.SerializeToString())
    del raw[data.draw(st.integers(0, len(raw))) :]
    for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = pb.TrajectoryEnvelope.FromString(bytes(raw))
    except DecodeError:
        with pytest.raises(WireError):
            take_fields(pb.TrajectoryEnvelope, bytes(raw), (BODY,))
        return
    try:
        rest, found = take_fields(pb.TrajectoryEnvelope, bytes(raw), (BODY,))
    except WireError:
        return  # a field that comes twice, or a group
    assert bytes(found.get(BODY, b"")) == parsed.body
    parsed.ClearField("body")
    assert rest == parsed
