"""Whatever bytes come in, the answer is a value or a `WireError`.

Never another exception, a hang or a large allocation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk, rover_spec
from wire import bombs
from wire.samples import FRAMED, decode, message_types, samples

from shoal import zstd
from shoal.delegation import decode_delegation
from shoal.envelope import decode_envelope
from shoal.errors import LimitExceeded, UnsupportedVersion, WireError
from shoal.layout import ActionLayout, ObservationLayout
from shoal.policy import MAX_BUNDLE_BYTES, decode_bundle, decode_golden, decode_manifest
from shoal.spaces import EnvSpec
from shoal.tensors import decode_tensors
from shoal.trajectory import MAX_BODY_BYTES, decode_chunk, encode_chunk
from shoal.v1 import space_pb2, trajectory_pb2
from shoal.validation import validate_chunk
from shoal.wire import HEADER_BYTES, frame, parse, unframe


def unpacked(body: bytes) -> bytes:
    return zstd.decompress(body, zstd.content_size(body) or 0)


SAMPLES = samples()
SPEC = cartpole_spec()
RAW_CHUNK = unpacked(encode_chunk(make_chunk(SPEC)))
RAW_ROVER = unpacked(SAMPLES["TrajectoryChunk.memory"])


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` after some flips, cuts, repeats and insertions; never equal to it."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        match draw(st.sampled_from(["flip", "cut", "extend", "insert", "remove", "repeat"])):
            case "flip" if at < len(out):
                out[at] ^= draw(st.integers(1, 255))
            case "cut":
                del out[at:]
            case "extend":
                out += draw(st.binary(min_size=1, max_size=20))
            case "insert":
                out[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "remove":
                del out[at : at + draw(st.integers(1, 8))]
            case _:
                out[at:at] = out[at : at + draw(st.integers(1, 40))]
    return bytes(out) if bytes(out) != data else data + b"\x00"


def value_or_wire_error(read: Callable[[bytes], object], data: bytes) -> object | None:
    try:
        return read(data)
    except WireError as error:
        message = str(error)
    assert message, "an error says what was wrong"
    assert len(message) < 1000, "and does not repeat what it was sent"
    return None


@pytest.mark.parametrize("name", sorted(FRAMED))
@given(data=st.data())
def test_a_damaged_frame_is_always_a_wire_error(name: str, data: st.DataObject) -> None:
    with pytest.raises(WireError):
        decode(name, data.draw(damaged(SAMPLES[name])))


@pytest.mark.parametrize("name", sorted(FRAMED))
def test_every_single_flipped_bit_and_every_cut_is_a_wire_error(name: str) -> None:
    frame_bytes = SAMPLES[name][:200]
    whole = SAMPLES[name]
    for at in range(len(frame_bytes)):
        for bit in range(8):
            flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            with pytest.raises(WireError):
                decode(name, flipped)
        with pytest.raises(WireError):
            decode(name, whole[:at])


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_wire_error(data: bytes) -> None:
    for name in FRAMED:
        with pytest.raises(WireError):
            decode(name, data)
    with pytest.raises(WireError):
        decode_chunk(data)


@given(st.integers(0, 255).filter(lambda version: version != 1))
def test_another_major_version_is_named_as_such(version: int) -> None:
    data = bytearray(SAMPLES["Status"])
    data[3] = version
    with pytest.raises(UnsupportedVersion, match=str(version)):
        decode("Status", bytes(data))


def test_a_frame_over_its_limit_is_refused_before_it_is_parsed() -> None:
    data = SAMPLES["Status"]
    cls = message_types()["Status"]
    assert unframe(cls, data, max_bytes=len(data)).IsInitialized()
    with pytest.raises(LimitExceeded):
        unframe(cls, data, max_bytes=len(data) - 1)


@pytest.mark.parametrize("name", sorted(FRAMED))
def test_a_frame_round_trips_and_unknown_fields_are_ignored(name: str) -> None:
    message = decode(name, SAMPLES[name])
    assert decode(name, frame(message)) == message
    newer = type(message).FromString(
        message.SerializeToString() + bombs.field(1999, b"from a later version")
    )
    known = decode(name, frame(newer))
    assert {field.name: value for field, value in known.ListFields()} == {
        field.name: value for field, value in message.ListFields()
    }


@pytest.mark.parametrize("name", sorted(FRAMED))
@given(data=st.data())
def test_a_damaged_payload_under_a_valid_checksum_is_a_value_or_a_wire_error(
    name: str, data: st.DataObject
) -> None:
    payload = data.draw(damaged(SAMPLES[name][HEADER_BYTES:]))
    message = value_or_wire_error(lambda raw: parse(message_types()[name], raw), payload)
    if isinstance(message, Message) and name == "TrajectoryEnvelope":
        value_or_wire_error(decode_envelope, frame(message))
    if isinstance(message, Message) and name == "Status":
        value_or_wire_error(lambda _: EnvSpec.from_pb(message.env_spec), b"")  # type: ignore[attr-defined]


@given(damaged(SAMPLES["TrajectoryChunk"]))
def test_a_damaged_body_is_a_chunk_or_a_wire_error(body: bytes) -> None:
    value_or_wire_error(decode_chunk, body)


@pytest.mark.parametrize(("raw", "spec"), [(RAW_CHUNK, SPEC), (RAW_ROVER, rover_spec())])
@given(data=st.data())
def test_a_damaged_chunk_that_was_compressed_well_is_a_chunk_or_a_wire_error(
    raw: bytes, spec: EnvSpec, data: st.DataObject
) -> None:
    body = zstd.compress(data.draw(damaged(raw)), level=1, checksum=True)
    value_or_wire_error(lambda body: validate_chunk(decode_chunk(body), spec), body)


@given(damaged(SAMPLES["EnvSpec.nested"]))
def test_a_damaged_specification_is_one_with_layouts_or_a_wire_error(data: bytes) -> None:
    def read(raw: bytes) -> None:
        spec = EnvSpec.from_pb(parse(space_pb2.EnvSpec, raw))
        ObservationLayout.of(spec.observation)
        ActionLayout.of(spec.action)

    value_or_wire_error(read, data)


COLUMNS = [
    field.name
    for field in trajectory_pb2.TrajectoryChunk.DESCRIPTOR.fields
    if field.message_type is not None and field.message_type.name == "Tensor"
]


@given(
    st.dictionaries(
        st.sampled_from(COLUMNS),
        st.tuples(
            st.integers(0, 11),
            st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1]), max_size=9),
            st.sampled_from([0, 1, 4, 8, 32, 64, 160]),
        ),
        min_size=1,
    )
)
def test_columns_of_any_dtype_and_shape_are_a_chunk_or_a_wire_error(
    changes: dict[str, tuple[int, list[int], int]],
) -> None:
    message = parse(trajectory_pb2.TrajectoryChunk, RAW_CHUNK)
    for name, (code, shape, size) in changes.items():
        getattr(message, name).Clear()
        getattr(message, name).MergeFromString(bytes([0x10, code]))
        getattr(message, name).shape.extend(shape)
        getattr(message, name).data = bytes(size)
    body = zstd.compress(message.SerializeToString(), level=1, checksum=True)
    value_or_wire_error(lambda data: validate_chunk(decode_chunk(data), SPEC), body)


POLICY_READERS: dict[str, Callable[[bytes], object]] = {
    "PolicyManifest": decode_manifest,
    "PolicyBundle": decode_bundle,
    "PolicyBundle.2": decode_bundle,
    "Delegation": decode_delegation,
    "TensorSet": decode_tensors,
    "TensorSet.golden": decode_golden,
    "TensorSet.golden_memory": decode_golden,
}


@pytest.mark.parametrize("name", sorted(POLICY_READERS))
@given(data=st.data())
def test_a_damaged_policy_is_a_value_or_a_wire_error(name: str, data: st.DataObject) -> None:
    value_or_wire_error(POLICY_READERS[name], data.draw(damaged(SAMPLES[name])))


@pytest.mark.parametrize(
    "name", sorted(name for name in set(SAMPLES) - FRAMED if not name.startswith("TrajectoryChunk"))
)
@given(data=st.data())
def test_any_damaged_message_is_a_message_or_a_wire_error(name: str, data: st.DataObject) -> None:
    value_or_wire_error(lambda raw: decode(name, raw), data.draw(damaged(SAMPLES[name])))


SMALL = 24 * bombs.MIB  # what an allocator and a few error messages take
ALLOWED = {
    # Within the limit it says: decompressed once, and copied by the parser.
    "zeros": 3 * MAX_BODY_BYTES,
    "empty_episodes": 3 * MAX_BODY_BYTES,
    "unknown_fields": 3 * MAX_BODY_BYTES,
    "unknown_messages": 3 * MAX_BODY_BYTES,
    "columns_again_and_again": 3 * MAX_BODY_BYTES,
    "says_the_limit_and_holds_nothing": MAX_BODY_BYTES + SMALL,
    "a_shape_without_end": 5 * MAX_BODY_BYTES,
    # The payload itself, which was there before, counted with its copy.
    "empty_tensors": 2 * MAX_BUNDLE_BYTES + SMALL,
    "empty_golden_tensors": 2 * MAX_BUNDLE_BYTES + SMALL,
}


@pytest.mark.parametrize("name", sorted(bombs.BOMBS))
def test_a_bomb_is_a_wire_error_and_no_large_allocation(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(bombs.__file__)), name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    outcome, grown, message = done.stdout.split(maxsplit=2)
    assert outcome == "WireError", done.stdout
    assert int(grown) <= ALLOWED.get(name, SMALL), f"grew by {int(grown) >> 20} MiB: {message}"
