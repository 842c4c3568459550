"""A policy as it is offered, serialized or not: what is in it, once it is known who signed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.policies.policy_files import PolicyFile
from shoal.errors import PolicyRejected
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    SIGNING_CONTEXT,
    Bundle,
    Golden,
    Manifest,
    check_digests,
    decode_bundle,
    decode_manifest,
    golden_of,
    sha256,
)
from shoal.policy_delta import Content, Unpacked
from shoal.tensors import Array

Offered = bytes | Unpacked
"""A serialized bundle, or what a delta was made into; not trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class Signed:
    """What a fleet's key has signed; whether it may act here is another question.

    Attributes:
        manifest: What it says of itself.
        file: What names it.
        tensors: Every initializer, by name.
        golden: What it must decide.
    """

    manifest: Manifest
    file: PolicyFile
    tensors: Mapping[str, Array]
    golden: Golden


def read_signed(offered: Offered, key: Ed25519PublicKey) -> Signed:
    """Reads what is offered: size cap, then signature, then hashes, and only then what is in it.

    Raises:
        LimitExceeded: It is too large.
        PolicyRejected: With the reason `signature` or `digest`.
        WireError: It is malformed.
    """
    bundle: Bundle | Unpacked
    if isinstance(offered, Unpacked):
        bundle = offered
    else:
        bundle = decode_bundle(offered, max_bytes=MAX_BUNDLE_BYTES)
    try:
        key.verify(bundle.signature, SIGNING_CONTEXT + bundle.manifest)
    except InvalidSignature as error:
        raise PolicyRejected(
            "signature", "a policy was not signed with this fleet's key; nothing of it was used"
        ) from error
    manifest = decode_manifest(bundle.manifest)
    if isinstance(bundle, Unpacked):
        bundle.check_digests(manifest)
        content = bundle.content
    else:
        check_digests(manifest, bundle)
        content = Content.of(bundle)
    file = PolicyFile(manifest.version, sha256(bundle.manifest))
    return Signed(manifest, file, content.tensors, golden_of(content.golden))


def serialized(offered: Offered) -> bytes:
    """What is offered as its file holds it."""
    return offered.bundle() if isinstance(offered, Unpacked) else offered
