"""A policy by what differs from another: exact, and never more than what was signed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.samples import samples

from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.policy import (
    Bundle,
    Golden,
    check_digests,
    decode_bundle,
    decode_manifest,
    encode_bundle,
    encode_golden,
    encode_manifest,
    sha256,
)
from shoal.policy_delta import (
    Base,
    Content,
    PolicyDelta,
    decode_policy_delta,
    encode_policy_delta,
)
from shoal.tensors import Array, encode_tensors

MANIFEST = decode_manifest(samples()["PolicyManifest"])


def bundle(seed: int, *, steps: bool = False) -> Bundle:
    """A policy; with `steps` one that differs from that of seed 0 by a few."""
    rng = np.random.default_rng(0 if steps else seed)
    weight = rng.integers(-60, 60, (32, 32)).astype(np.int8)
    if steps:
        weight.flat[seed::50] += 1
    tensors: dict[str, Array] = {"weight": weight, "scale": np.full((), 0.5 + seed, np.float32)}
    golden = Golden(
        observations=np.zeros((3, 4), np.float32),
        noise=np.zeros((3, 2), np.float32),
        actions=np.array([0, 1, seed % 2], np.int64),
        log_probs=np.full(3, -seed, np.float32),
    )
    return Bundle(
        manifest=_manifest(seed),
        signature=bytes([seed % 256]) * 64,
        tensors=encode_tensors(tensors),
        golden=encode_golden(golden),
    )


def _manifest(seed: int) -> bytes:
    return encode_manifest(replace(MANIFEST, version=seed + 1))


@given(st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_the_bundle_comes_back_byte_for_byte(a: int, b: int, steps: bool) -> None:  # noqa: FBT001
    base, target = bundle(a), bundle(b, steps=steps)
    delta = decode_policy_delta(encode_policy_delta(PolicyDelta.between(base, target)))
    assert delta.base == Base.of(decode_manifest(base.manifest))
    assert decode_bundle(delta.restore(Content.of(base))) == target
    assert delta.restore(Content.of(base)) == encode_bundle(target)


@given(st.integers(0, 99), st.integers(0, 99))
def test_what_is_unpacked_has_the_hashes_of_what_it_serializes_to(a: int, b: int) -> None:
    base, target = bundle(a), bundle(b, steps=True)
    unpacked = PolicyDelta.between(base, target).unpack(Content.of(base))
    signed = replace(
        MANIFEST, tensors_digest=sha256(target.tensors), golden_digest=sha256(target.golden)
    )
    unpacked.check_digests(signed)
    assert unpacked.bundle() == encode_bundle(target)
    for wrong in (
        replace(signed, tensors_digest=bytes(32)),
        replace(signed, golden_digest=bytes(32)),
    ):
        with pytest.raises(PolicyRejected, match="not those that were signed"):
            unpacked.check_digests(wrong)


def test_few_steps_are_a_small_delta() -> None:
    base, target = bundle(0), bundle(1, steps=True)
    delta = encode_policy_delta(PolicyDelta.between(base, target))
    assert len(delta) < 450 < len(encode_bundle(target))


def test_another_base_gives_what_no_manifest_names() -> None:
    target = bundle(5)
    delta = PolicyDelta.between(bundle(0), bundle(1, steps=True))
    try:
        restored = decode_bundle(delta.restore(Content.of(target)))
    except WireError:
        return
    with pytest.raises(PolicyRejected, match="not those that were signed"):
        check_digests(decode_manifest(target.manifest), restored)


@given(st.data())
def test_whatever_bytes_come_give_a_bundle_or_a_wire_error(data: st.DataObject) -> None:
    base = bundle(0)
    out = bytearray(encode_policy_delta(PolicyDelta.between(base, bundle(1, steps=True))))
    for _ in range(data.draw(st.integers(1, 3))):
        out[data.draw(st.integers(0, len(out) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_policy_delta(bytes(out)).restore(Content.of(base))
    except WireError:
        return


def test_what_is_too_long_or_lacks_a_field_is_refused() -> None:
    data = encode_policy_delta(PolicyDelta.between(bundle(0), bundle(1)))
    with pytest.raises(LimitExceeded):
        decode_policy_delta(data, max_bytes=len(data) - 1)
    delta = PolicyDelta.between(bundle(0), bundle(1))
    for broken in (replace(delta, signature=b""), replace(delta, base=Base(1, b"short"))):
        with pytest.raises(WireError, match="must be 64 bytes"):
            decode_policy_delta(encode_policy_delta(broken))
