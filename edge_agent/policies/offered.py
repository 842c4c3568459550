"""A policy as it is offered, serialized or not: what is in it, once it is known who signed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.policies.policy_files import PolicyFile
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    Bundle,
    Golden,
    check_digests,
    decode_bundle,
    golden_of,
    sha256,
)
from shoal.policy_delta import Content, Unpacked
from shoal.policy_trust import SignedManifest, prove_manifest
from shoal.tensors import Array

Offered = bytes | Unpacked
"""A serialized bundle, or what a delta was made into; not trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """What a fleet has signed; whether it may act here is another question.

    Attributes:
        signed: What it says of itself, and who signed that.
        file: What names it.
        tensors: Every initializer, by name.
        golden: What it must decide.
        delegation: As in its bundle.
    """

    signed: SignedManifest
    file: PolicyFile
    tensors: Mapping[str, Array]
    golden: Golden
    delegation: bytes


def open_offered(offered: Offered, root: Ed25519PublicKey) -> Opened:
    """Reads what is offered: size cap, then signature, then hashes, and only then what is in it.

    Args:
        offered: Not trusted.
        root: The fleet's policy key.

    Raises:
        LimitExceeded: It is too large.
        PolicyRejected: With the reason `digest`, or one of `prove_manifest`'s.
        WireError: It is malformed.
    """
    bundle: Bundle | Unpacked
    if isinstance(offered, Unpacked):
        bundle = offered
    else:
        bundle = decode_bundle(offered, max_bytes=MAX_BUNDLE_BYTES)
    signed = prove_manifest(bundle, root)
    manifest = signed.manifest
    if isinstance(bundle, Unpacked):
        bundle.check_digests(manifest)
        content = bundle.content
    else:
        check_digests(manifest, bundle)
        content = Content.of(bundle)
    file = PolicyFile(manifest.version, sha256(bundle.manifest))
    golden = golden_of(content.golden)
    return Opened(signed, file, content.tensors, golden, bundle.delegation)


def serialized(offered: Offered) -> bytes:
    """What is offered as its file holds it."""
    return offered.bundle() if isinstance(offered, Unpacked) else offered
