"""Manifests, bundles, golden vectors and parts; and the rules of acceptance."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.policy import (
    MAX_MANIFEST_BYTES,
    PRECISIONS,
    Assembler,
    Bundle,
    Golden,
    Manifest,
    PayloadPart,
    check_digests,
    check_manifest,
    decode_bundle,
    decode_golden,
    decode_manifest,
    encode_bundle,
    encode_golden,
    encode_manifest,
    policy_digest,
    sha256,
    split,
)
from shoal.tensors import encode_tensors

DIGESTS = st.binary(min_size=32, max_size=32)
COUNTS = st.integers(0, 2**62 - 1)
MANIFESTS = st.builds(
    Manifest,
    fleet=st.text(max_size=63),
    version=st.integers(1, 2**62 - 1),
    updates=COUNTS,
    graph_digest=DIGESTS,
    graph_bytes=COUNTS,
    tensors_digest=DIGESTS,
    tensors_bytes=COUNTS,
    golden_digest=DIGESTS,
    spec_fingerprint=DIGESTS,
    precision=st.sampled_from(PRECISIONS),
    created_unix_ms=st.integers(-(2**63), 2**63 - 1),
    kl_quantization=st.floats(0, 1e6),
    reason=st.text(max_size=20),
    noise_correlation=st.floats(0, 1),
    agreement=st.floats(0, 1),
    priority_gamma=st.floats(0, 1),
    float_graph_digest=st.one_of(st.just(b""), DIGESTS),
)
TENSORS = encode_tensors({"w": np.ones((2, 2), np.int8)})
GOLDEN = encode_golden(
    Golden(
        observations=np.zeros((3, 4), np.float32),
        noise=np.zeros((3, 2), np.float32),
        actions=np.zeros(3, np.int64),
        log_probs=np.zeros(3, np.float32),
    )
)
MANIFEST = Manifest(
    fleet="farm",
    version=5,
    updates=40,
    graph_digest=sha256(b"graph"),
    graph_bytes=5,
    tensors_digest=sha256(TENSORS),
    tensors_bytes=len(TENSORS),
    golden_digest=sha256(GOLDEN),
    spec_fingerprint=bytes(32),
    precision="int8",
    created_unix_ms=0,
    kl_quantization=0.001,
    reason="publish",
)
BUNDLE = Bundle(encode_manifest(MANIFEST), bytes(64), TENSORS, GOLDEN)


@given(MANIFESTS)
def test_any_manifest_round_trips(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.digest == policy_digest(manifest.graph_digest, manifest.tensors_digest)
    twin = policy_digest(manifest.float_graph_digest, manifest.tensors_digest)
    assert manifest.twin_digest == (twin if manifest.float_graph_digest else b"")


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 0},
        {"version": 2**62},
        {"updates": 2**62},
        {"precision": "int4"},
        {"precision": ""},
        {"graph_digest": b""},
        {"tensors_digest": bytes(31)},
        {"golden_digest": bytes(33)},
        {"float_graph_digest": bytes(31)},
        {"spec_fingerprint": b""},
        {"kl_quantization": math.nan},
        {"kl_quantization": math.inf},
        *(
            {name: value}
            for name in ("noise_correlation", "agreement", "priority_gamma")
            for value in (-0.1, 1.1, math.nan, math.inf)
        ),
    ],
    ids=str,
)
def test_a_manifest_with_a_field_out_of_range_is_a_wire_error(wrong: dict[str, object]) -> None:
    manifest = dataclasses.replace(MANIFEST, **wrong)  # type: ignore[arg-type]
    with pytest.raises(WireError):
        decode_manifest(encode_manifest(manifest))


def test_refuses_a_manifest_over_its_limit() -> None:
    manifest = dataclasses.replace(MANIFEST, reason="x" * MAX_MANIFEST_BYTES)
    with pytest.raises(LimitExceeded):
        decode_manifest(encode_manifest(manifest))


@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=100))
def test_any_bundle_round_trips(manifest: bytes, tensors: bytes, golden: bytes) -> None:
    bundle = Bundle(manifest, bytes(range(64)), tensors, golden)
    assert decode_bundle(encode_bundle(bundle)) == bundle


def test_refuses_a_bundle_over_its_limit_or_without_a_signature() -> None:
    data = encode_bundle(BUNDLE)
    with pytest.raises(LimitExceeded):
        decode_bundle(data, max_bytes=len(data) - 1)
    for signature in (b"", bytes(63), bytes(65)):
        with pytest.raises(WireError, match="signature"):
            decode_bundle(encode_bundle(dataclasses.replace(BUNDLE, signature=signature)))


def test_golden_vectors_round_trip() -> None:
    golden = decode_golden(GOLDEN)
    assert golden.observations.shape == (3, 4)
    assert golden.actions.dtype == np.int64
    assert encode_golden(golden) == GOLDEN


@pytest.mark.parametrize(
    "wrong",
    [
        {"observations": np.zeros((2, 4), np.float32)},
        {"noise": np.zeros((3, 2), np.float64)},
        {"log_probs": np.zeros(3, np.float64)},
        {"actions": np.zeros((), np.int64)},
        {
            name: np.zeros(0, np.float32)
            for name in ("observations", "noise", "actions", "log_probs")
        },
    ],
)
def test_golden_vectors_that_do_not_fit_are_a_wire_error(wrong: dict[str, object]) -> None:
    with pytest.raises(WireError, match="golden"):
        decode_golden(encode_golden(dataclasses.replace(decode_golden(GOLDEN), **wrong)))  # type: ignore[arg-type]


STATES = np.ones((3, 5), np.float32)


def test_golden_vectors_of_a_policy_with_memory_round_trip() -> None:
    golden = dataclasses.replace(decode_golden(GOLDEN), states=STATES, next_states=STATES * 2)
    back = decode_golden(encode_golden(golden))
    assert back.states is not None
    assert back.next_states is not None
    assert np.array_equal(back.states * 2, back.next_states)


@pytest.mark.parametrize(
    "wrong",
    [
        {"states": STATES},
        {"next_states": STATES},
        {"states": STATES[:2], "next_states": STATES[:2]},
        {"states": STATES, "next_states": STATES[:, :4]},
        {"states": STATES.astype(np.float64), "next_states": STATES},
    ],
)
def test_states_of_golden_vectors_that_do_not_fit_are_a_wire_error(
    wrong: dict[str, object],
) -> None:
    with pytest.raises(WireError, match="golden"):
        decode_golden(encode_golden(dataclasses.replace(decode_golden(GOLDEN), **wrong)))  # type: ignore[arg-type]


def test_golden_vectors_need_every_tensor_and_no_other() -> None:
    for names in (("actions",), ("actions", "log_probs", "noise", "observations", "more")):
        data = encode_tensors({name: np.zeros(1, np.float32) for name in names})
        with pytest.raises(WireError, match="missing or unknown"):
            decode_golden(data)


def test_checks_that_the_bundle_holds_what_was_signed() -> None:
    check_digests(MANIFEST, BUNDLE)
    for field in ("tensors", "golden"):
        swapped = dataclasses.replace(BUNDLE, **{field: b"other"})
        with pytest.raises(PolicyRejected) as caught:
            check_digests(MANIFEST, swapped)
        assert caught.value.reason == "digest"


@pytest.mark.parametrize(
    ("fleet", "fingerprint", "newest_seen", "reason"),
    [
        ("farm", bytes(32), 4, None),
        ("farm", bytes(32), 0, None),
        ("barn", bytes(32), 4, "fleet"),
        ("farm", b"\x01" * 32, 4, "fingerprint"),
        ("farm", bytes(32), 5, "rollback"),
        ("farm", bytes(32), 6, "rollback"),
    ],
)
def test_accepts_only_a_newer_policy_of_its_own_fleet_and_spaces(
    fleet: str, fingerprint: bytes, newest_seen: int, reason: str | None
) -> None:
    if reason is None:
        check_manifest(MANIFEST, fleet=fleet, fingerprint=fingerprint, newest_seen=newest_seen)
        return
    with pytest.raises(PolicyRejected) as caught:
        check_manifest(MANIFEST, fleet=fleet, fingerprint=fingerprint, newest_seen=newest_seen)
    assert caught.value.reason == reason


@given(st.binary(max_size=300), st.integers(1, 64))
def test_what_is_split_assembles_again(data: bytes, size: int) -> None:
    parts = list(split(data, size))
    assert parts[0].offset == 0
    assert all(len(part.data) <= size for part in parts)
    assembler = Assembler(300)
    assert [assembler.add(part) for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert assembler.add(parts[-1]) == data


def test_one_assembler_takes_one_payload_after_another_and_starts_afresh_at_offset_0() -> None:
    assembler = Assembler(100)
    first, second = list(split(b"a" * 30, 10)), list(split(b"b" * 20, 10))
    assert assembler.add(first[0]) is None
    assert [assembler.add(part) for part in second] == [None, b"b" * 20]
    assert [assembler.add(part) for part in first] == [None, None, b"a" * 30]


PARTS = st.builds(
    PayloadPart,
    total_bytes=st.sampled_from([0, 1, 8, 16, 17, 2**64 - 1]),
    offset=st.sampled_from([0, 1, 4, 8, 12, 16, 2**64 - 1]),
    data=st.binary(max_size=8),
)


@given(st.lists(PARTS, max_size=12))
def test_any_parts_give_a_whole_payload_or_a_wire_error(parts: list[PayloadPart]) -> None:
    assembler = Assembler(16)
    for part in parts:
        try:
            payload = assembler.add(part)
        except WireError:
            continue
        if payload is not None:
            assert len(payload) == part.total_bytes <= 16
            assert payload.endswith(part.data)


@pytest.mark.parametrize("order", [[1], [0, 2], [0, 1, 1], [0, 1, 0, 2], [0, 1, 3]])
def test_a_missing_or_repeated_part_is_a_wire_error(order: list[int]) -> None:
    parts = [*split(b"x" * 24, 8), PayloadPart(24, 24, b"y")]
    assembler = Assembler(100)
    for index in order[:-1]:
        assembler.add(parts[index])
    with pytest.raises(WireError):
        assembler.add(parts[order[-1]])


def test_a_payload_that_says_it_is_too_large_is_refused_at_once() -> None:
    with pytest.raises(LimitExceeded):
        Assembler(100).add(PayloadPart(101, 0, b"x"))


# ------------------------------------------------------------------------------------ resumed parts


@given(st.binary(min_size=1, max_size=200), st.integers(1, 40), st.data())
def test_a_payload_may_break_off_anywhere_and_be_gone_on_with(
    payload: bytes, part_bytes: int, data: st.DataObject
) -> None:
    digest = sha256(payload)
    assembler = Assembler(1000)
    have, done = 0, None
    while done is None:
        rest = payload[have:]
        for part in split(rest, part_bytes):
            whole = PayloadPart(len(payload), have + part.offset, part.data, digest)
            done = assembler.add(whole)
            if done is None and data.draw(st.booleans()):
                break  # the stream ends
        if done is None:
            have = assembler.partial_bytes
            assert assembler.partial_digest == digest
    assert done == payload
    assert (assembler.partial_digest, assembler.partial_bytes) == (b"", 0)


def test_what_is_not_known_by_a_digest_cannot_be_gone_on_with() -> None:
    assembler = Assembler(1000)
    assert assembler.add(PayloadPart(10, 0, b"12345")) is None
    assert assembler.partial_bytes == 0


def test_the_rest_of_another_payload_is_refused_and_nothing_is_kept() -> None:
    assembler = Assembler(1000)
    assembler.add(PayloadPart(10, 0, b"12345", sha256(b"1234567890")))
    with pytest.raises(WireError):
        assembler.add(PayloadPart(10, 5, b"abcde", sha256(b"other")))
    assert assembler.partial_bytes == 0


def test_a_payload_that_is_not_what_its_digest_says_is_refused() -> None:
    assembler = Assembler(1000)
    with pytest.raises(WireError, match="digest"):
        assembler.add(PayloadPart(5, 0, b"12345", bytes(32)))
