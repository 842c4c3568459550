"""A policy by what differs from another: exact, and never more than what was signed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.samples import samples

from shoal import zstd
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
    compress_policy_delta,
    decode_policy_delta,
    encode_policy_delta,
)
from shoal.streams import LeaveRaw
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


def compressed(base: Bundle, target: Bundle) -> bytes:
    return compress_policy_delta(PolicyDelta.between(base, target, packer=LeaveRaw()))


@given(st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_the_bundle_comes_back_from_a_frame_too(a: int, b: int, steps: bool) -> None:  # noqa: FBT001
    base, target = bundle(a), bundle(b, steps=steps)
    data = compressed(base, target)
    assert decode_policy_delta(data).restore(Content.of(base)) == encode_bundle(target)
    assert compressed(base, target) == data


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_frame_is_never_longer(a: int, b: int) -> None:
    delta = PolicyDelta.between(bundle(a), bundle(b), packer=LeaveRaw())
    assert len(compress_policy_delta(delta)) <= len(encode_policy_delta(delta))


@pytest.mark.parametrize("density", [0.03, 0.06, 0.12, 0.24, 0.5])
def test_steps_of_one_are_near_their_entropy_in_a_frame(density: float) -> None:
    rng = np.random.default_rng(7)
    before = rng.integers(-60, 60, 68_600).astype(np.int8)
    changed = rng.random(before.size) < density
    after = before + (changed * rng.choice([-1, 1], before.size)).astype(np.int8)
    base, target = (replace(bundle(0), tensors=encode_tensors({"w": w})) for w in (before, after))
    part = changed.mean()
    plane = -(part * np.log2(part) + (1 - part) * np.log2(1 - part)) * before.size
    unchanged = len(compressed(base, base))
    assert len(compressed(base, target)) < 1.04 * (plane + changed.sum()) / 8 + unchanged + 64


def test_a_frame_that_says_too_much_or_nothing_is_refused_before_it_is_opened() -> None:
    data = encode_policy_delta(PolicyDelta.between(bundle(0), bundle(1), packer=LeaveRaw()))
    frame = zstd.compress(data, level=1)
    assert decode_policy_delta(frame, max_bytes=len(data)).base.version == 1
    with pytest.raises(LimitExceeded, match="in a frame"):
        decode_policy_delta(frame, max_bytes=len(data) - 1)
    untold = frame[:4] + b"\x00\x58" + b"\x01\x00\x00"  # its head has no size
    with pytest.raises(LimitExceeded, match="None bytes"):
        decode_policy_delta(untold)
    with pytest.raises(WireError, match="cannot be decompressed"):
        decode_policy_delta(frame[:-9])


def test_another_base_gives_what_no_manifest_names() -> None:
    target = bundle(5)
    delta = PolicyDelta.between(bundle(0), bundle(1, steps=True))
    try:
        restored = decode_bundle(delta.restore(Content.of(target)))
    except WireError:
        return
    with pytest.raises(PolicyRejected, match="not those that were signed"):
        check_digests(decode_manifest(target.manifest), restored)


@given(st.data(), st.booleans())
def test_whatever_bytes_come_give_a_bundle_or_a_wire_error(
    data: st.DataObject,
    framed: bool,  # noqa: FBT001
) -> None:
    base, target = bundle(0), bundle(1, steps=True)
    whole = encode_policy_delta(PolicyDelta.between(base, target))
    out = bytearray(compressed(base, target) if framed else whole)
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
