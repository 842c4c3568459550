"""Samples of what a delegate of the policy key signs with, and of what it signed."""

from __future__ import annotations

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.delegation import Delegation, encode_delegation, sign_delegation
from shoal.policy import decode_bundle, decode_manifest, encode_bundle, encode_manifest
from shoal.policy_delta import PolicyDelta, encode_policy_delta
from shoal.v1 import fleet_pb2

ROOT = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DELEGATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
DELEGATION = Delegation(
    fleet="farm",
    public_key=DELEGATE.public_key().public_bytes_raw(),
    generation=2,
    not_before_s=1_700_000_000,
    not_after_s=1_715_552_000,
)


def delegation_samples(whole: bytes, policy: fleet_pb2.PolicyInfo) -> dict[str, bytes]:
    """By name, as they travel.

    Args:
        whole: A bundle.
        policy: What is told of one.
    """
    signed = sign_delegation(DELEGATION, ROOT)
    bundle = replace(decode_bundle(whole), delegation=signed)
    after = replace(decode_manifest(bundle.manifest), version=8)
    target = replace(bundle, manifest=encode_manifest(after))
    told = fleet_pb2.PolicyInfo()
    told.CopyFrom(policy)
    told.delegation_generation, told.delegation_not_after_unix_s = 2, DELEGATION.not_after_s
    return {
        "Delegation": encode_delegation(DELEGATION),
        "SignedDelegation": signed,
        "PolicyBundle.2": encode_bundle(bundle),
        "PolicyDelta.2": encode_policy_delta(PolicyDelta.between(decode_bundle(whole), target)),
        "PolicyDelta.3": encode_policy_delta(PolicyDelta.between(bundle, target)),
        "PolicyInfo.3": told.SerializeToString(deterministic=True),
    }
