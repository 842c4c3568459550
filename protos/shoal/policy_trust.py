"""Who signed a policy: the fleet's policy key, or a delegate of it."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal.delegation import Delegation, Purpose, check_current, check_purpose, prove_delegation
from shoal.errors import PolicyRejected
from shoal.policy import SIGNING_CONTEXT, Bundle, Manifest, decode_manifest
from shoal.policy_delta import Unpacked


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature is proven, back to the policy key.

    signed = prove_manifest(bundle, root)
    signed.check_current(now_s=time.time(), newest_generation=2)   # unless it was accepted before

    Attributes:
        manifest: What was signed.
        delegation: Of the key that signed; None: the policy key itself did.
    """

    manifest: Manifest
    delegation: Delegation | None = None

    @property
    def generation(self) -> int:
        """Of the delegate; 0: the policy key itself signed."""
        return 0 if self.delegation is None else self.delegation.generation

    def check_current(self, *, now_s: float, newest_generation: int) -> None:
        """What is to be asked of a policy that was not accepted before; see `check_current`.

        Raises:
            PolicyRejected: With the reason `delegation_revoked`, `delegation_early` or
                `delegation_expired`.
        """
        if self.delegation is not None:
            check_current(self.delegation, now_s=now_s, newest_generation=newest_generation)


def prove_manifest(bundle: Bundle | Unpacked, root: Ed25519PublicKey) -> SignedManifest:
    """Proves who signed a bundle's manifest, and that he may; no clock is asked.

    So what was once accepted proves itself for ever, as a device needs that was off for long.

    Args:
        bundle: Not trusted.
        root: The fleet's policy key.

    Raises:
        WireError: Manifest or delegation is malformed.
        PolicyRejected: With the reason `signature`, `delegation`, `delegation_fleet` or
            `delegation_purpose`.
    """
    delegation, key = None, root
    if bundle.delegation:
        delegation = prove_delegation(bundle.delegation, root)
        key = Ed25519PublicKey.from_public_bytes(delegation.public_key)
    try:
        key.verify(bundle.signature, SIGNING_CONTEXT + bundle.manifest)
    except InvalidSignature:
        whose = "fleet's policy key" if delegation is None else "delegate that comes with it"
        raise PolicyRejected(
            "signature", f"a policy's signature is not of this {whose}; nothing of it was used"
        ) from None
    manifest = decode_manifest(bundle.manifest)
    if delegation is not None:
        check_purpose(delegation, Purpose.POLICIES, fleet=manifest.fleet)
    return SignedManifest(manifest, delegation)
