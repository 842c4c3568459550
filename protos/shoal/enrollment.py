"""What a device and its fleet agree on before they trust each other: proofs, limits, a fingerprint.

Both sides sign and check the same bytes: a challenge of the server, and what is asked. So a request
that somebody recorded is worth nothing, and a token never speaks for another key.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.errors import ConfigError

CHALLENGE_BYTES: Final = 32
MAX_REQUEST_DER_BYTES: Final = 4096
"""A signing request or a certificate on its way to the server; a P-256 one has some 500 bytes."""
MAX_PROOF_BYTES: Final = 128
MAX_TOKEN_CHARACTERS: Final = 128
MAX_CHAIN_BYTES: Final = 32 * 1024
"""A certificate and what leads to the root, on its way to the device."""
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def enroll_proof(challenge: bytes, csr: bytes, token: str) -> bytes:
    """What the key of a signing request signs to enrol.

    Args:
        challenge: The server's, 32 bytes.
        csr: The signing request, DER.
        token: As sent; empty if an operator has to approve.
    """
    return _proof(b"shoal.v1 enroll", challenge, csr, token.encode())


def renew_proof(challenge: bytes, certificate: bytes) -> bytes:
    """What the key of a certificate signs to renew it.

    Args:
        challenge: The server's, 32 bytes.
        certificate: The present one, DER.
    """
    return _proof(b"shoal.v1 renew", challenge, certificate)


def prove(key: ec.EllipticCurvePrivateKey, statement: bytes) -> bytes:
    """Signs a proof."""
    return key.sign(statement, ec.ECDSA(hashes.SHA256()))


def is_proven(key: ec.EllipticCurvePublicKey, proof: bytes, statement: bytes) -> bool:
    """Whether a proof was made by the holder of a key."""
    try:
        key.verify(proof, statement, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def key_digest(key: ec.EllipticCurvePublicKey) -> bytes:
    """A key's sha256 (of its SubjectPublicKeyInfo), by which operators and servers know it."""
    return hashlib.sha256(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    ).digest()


def check_fingerprint(text: str) -> str:
    """Returns the sha256 of a CA's certificate, 64 hexadecimal digits in lower case.

    Raises:
        ConfigError: It is not one; colons between the bytes are allowed.
    """
    fingerprint = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError(
            f"{text[:100]!r} is not a CA's fingerprint: give the 64 hexadecimal digits that "
            "`shoal enroll fingerprint` prints"
        )
    return fingerprint


def _proof(*parts: bytes) -> bytes:
    return b"".join(hashlib.sha256(part).digest() for part in parts)
