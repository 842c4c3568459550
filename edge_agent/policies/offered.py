"""A policy as it is offered: serialized, or as what a delta was made into; not trusted."""

from __future__ import annotations

from shoal.policy import Bundle, Manifest, check_digests
from shoal.policy_delta import Content, Unpacked

Offered = bytes | Unpacked


def content_of(bundle: Bundle | Unpacked, manifest: Manifest) -> Content:
    """What is in a bundle, decoded once it is known to be what was signed.

    Raises:
        PolicyRejected: With the reason `digest`.
        WireError: It is malformed.
    """
    if isinstance(bundle, Unpacked):
        bundle.check_digests(manifest)
        return bundle.content
    check_digests(manifest, bundle)
    return Content.of(bundle)


def serialized(offered: Offered) -> bytes:
    """What is offered as its file holds it."""
    return offered.bundle() if isinstance(offered, Unpacked) else offered
