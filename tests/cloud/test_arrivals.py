"""Messages are taken apart, whatever bytes are in them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from sim import TOPICS, SimDevice
from strategies import DIGEST, cartpole_spec, make_chunk

from cloud_learner.journal.audit import Decided
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard
from cloud_learner.uplink.arrivals import open_chunks, open_reports
from cloud_learner.uplink.inbox import Message
from shoal.envelope import Envelope, encode_envelope
from shoal.errors import WireError
from shoal.trajectory import encode_chunk
from shoal.v1 import device_pb2 as pb
from shoal.wire import frame

SPEC = cartpole_spec()
CHUNK = replace(make_chunk(SPEC), policy_version=1)
GOOD = encode_chunk(CHUNK)
VERSIONS = KnownVersions(lambda _: None, highest=0)
VERSIONS.add(1, KnownVersion(0, DIGEST, (bytes(range(32, 64)),)))
STANDARD = Standard(SPEC, VERSIONS, 0, 10)


@given(st.binary(max_size=200), st.sampled_from(["trajectory", "status", "telemetry", "event"]))
def test_no_bytes_can_raise(payload: bytes, kind: str) -> None:
    topic = f"{TOPICS.base('pi-1')}/up/{kind}"
    messages = [Message(topic, payload), Message(topic[:-3], payload)]
    open_reports(messages)
    opened = open_chunks(messages, STANDARD, lambda _: Decided(), max_bytes=100)
    assert len(opened.refusals) == 2


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_flipped_byte_in_a_body_never_raises(at: int, flip: int) -> None:
    body = bytearray(GOOD)
    body[at] ^= flip
    device = SimDevice("pi-1")
    key = device.produce(GOOD)
    try:
        payload = encode_envelope(Envelope(key, bytes(body), 0))
    except WireError:
        return  # a device could not even send it
    message = Message(TOPICS.trajectory("pi-1"), payload)
    opened = open_chunks([message], STANDARD, lambda _: Decided(), max_bytes=1 << 20)
    assert len(opened.arrivals) == 1


def test_a_cleared_retained_status_means_nothing() -> None:
    opened = open_reports([Message(TOPICS.status("pi-1"), b"")])
    assert not opened.statuses
    assert not opened.refusals


def test_a_report_with_a_run_id_of_the_wrong_size_is_refused() -> None:
    telemetry = pb.Telemetry(device_id="pi-1", run_id=b"short")
    opened = open_reports([Message(TOPICS.telemetry("pi-1"), frame(telemetry))])
    assert [refusal.name for refusal in opened.refusals] == ["garbage"]
