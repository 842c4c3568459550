from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.downlink import published
from cloud_learner.downlink.published import Circumstances, fp32_bytes, read_policy, sign_policy
from shoal.errors import PolicyLogError, PolicyRejected, WireError
from shoal.policy import (
    SIGNING_CONTEXT,
    Golden,
    decode_bundle,
    decode_golden,
    encode_bundle,
    policy_digest,
    sha256,
)
from shoal.tensors import Array, decode_tensors

GRAPH = b"a weightless graph"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CIRCUMSTANCES = Circumstances(
    fleet="reef",
    version=7,
    updates=112,
    spec_fingerprint=bytes(32),
    created_unix_ms=1_700_000_000_000,
    reason="publish",
)


@dataclass(frozen=True)
class SmallPolicy:
    tensors: dict[str, Array]
    golden: Golden
    precision: str = "int8"
    kl_quantization: float = 0.002
    agreement: float = 0.996


def small_policy() -> SmallPolicy:
    rng = np.random.default_rng(3)
    golden = Golden(
        observations=rng.normal(size=(2, 4)).astype(np.float32),
        noise=rng.normal(size=(2, 2)).astype(np.float32),
        actions=np.array([0, 1]),
        log_probs=np.array([-0.5, -0.9], np.float32),
    )
    tensors: dict[str, Array] = {
        "weight.0": rng.integers(-127, 128, (4, 8), np.int8),
        "weight.0.scale": np.ones(8, np.float32),
        "weight.0.zero": np.zeros(8, np.int8),
        "bias.0": np.arange(8, dtype=np.int32),
        "input.gain": np.ones(4, np.float32),
    }
    return SmallPolicy(tensors, golden)


def test_what_was_signed_reads_back_whole() -> None:
    policy = small_policy()
    signed = sign_policy(policy, GRAPH, CIRCUMSTANCES, KEY)
    read = read_policy(signed.bundle, KEY.public_key(), version=7)
    assert read == signed
    assert (read.version, read.manifest.updates, read.manifest.precision) == (7, 112, "int8")
    bundle = decode_bundle(read.bundle)
    KEY.public_key().verify(bundle.signature, SIGNING_CONTEXT + bundle.manifest)
    assert read.digest == policy_digest(sha256(GRAPH), sha256(bundle.tensors))
    for name, array in decode_tensors(bundle.tensors).items():
        np.testing.assert_array_equal(array, policy.tensors[name])
    np.testing.assert_array_equal(decode_golden(bundle.golden).actions, policy.golden.actions)


def test_equal_policies_have_equal_bytes() -> None:
    first = sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY)
    second = sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY)
    assert first == second


@given(data=st.data())
def test_any_damage_is_refused(data: st.DataObject) -> None:
    whole = sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY).bundle
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    if len(damaged) == len(whole) or data.draw(st.booleans()):
        position = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        if damaged:
            damaged[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((WireError, PolicyRejected)):
        read_policy(bytes(damaged), KEY.public_key(), version=7)


def test_a_signature_by_another_key_is_refused() -> None:
    signed = sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, Ed25519PrivateKey.generate())
    with pytest.raises(PolicyRejected, match="policy key"):
        read_policy(signed.bundle, KEY.public_key(), version=7)


def test_tensors_of_another_version_are_refused() -> None:
    mine = decode_bundle(sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY).bundle)
    policy = small_policy()
    policy.tensors["bias.0"] = policy.tensors["bias.0"] + np.int32(1)
    other = decode_bundle(sign_policy(policy, GRAPH, CIRCUMSTANCES, KEY).bundle)
    swapped = encode_bundle(replace(mine, tensors=other.tensors))
    with pytest.raises(PolicyRejected, match="tensors"):
        read_policy(swapped, KEY.public_key(), version=7)


def test_a_bundle_under_another_number_is_refused() -> None:
    signed = sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY)
    with pytest.raises(PolicyRejected, match="says version 7"):
        read_policy(signed.bundle, KEY.public_key(), version=8)


def test_a_policy_that_devices_would_refuse_for_its_size_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published, "MAX_BUNDLE_BYTES", 100)
    with pytest.raises(PolicyLogError, match="devices accept 100"):
        sign_policy(small_policy(), GRAPH, CIRCUMSTANCES, KEY)


def test_fp32_counts_weights_and_biases_and_no_quantization_parameters() -> None:
    assert fp32_bytes(small_policy().tensors) == 4 * (4 * 8 + 8)


def test_the_manifest_says_what_devices_are_asked_for_and_how_alike_both_policies_choose() -> None:
    asked = replace(CIRCUMSTANCES, noise_correlation=0.9, priority_gamma=0.97)
    signed = sign_policy(small_policy(), GRAPH, asked, KEY)
    manifest = read_policy(signed.bundle, KEY.public_key(), 7).manifest
    assert manifest.noise_correlation == 0.9
    assert manifest.priority_gamma == 0.97
    assert manifest.agreement == 0.996
