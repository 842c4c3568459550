"""Which certificates of a fleet are not to be trusted any more: its CRL, read and proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.errors import IdentityError


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Serial numbers of revoked certificates.

    RevocationList.read(path.read_bytes(), chain=pems.cert).revokes(certificate)
    """

    serials: frozenset[int] = frozenset()

    @classmethod
    def read(cls, crl_pem: bytes, *, chain: bytes) -> Self:
        """Reads a CRL.

        Args:
            crl_pem: The list, PEM.
            chain: Certificates of whom it must be signed by one, PEM: a member's own chain does.

        Raises:
            IdentityError: It is damaged, or signed by somebody else.
        """
        try:
            crl = x509.load_pem_x509_crl(crl_pem)
            issuers = [
                certificate
                for certificate in x509.load_pem_x509_certificates(chain)
                if certificate.subject == crl.issuer
            ]
            proven = any(_signed(crl, issuer) for issuer in issuers)
        except ValueError as error:
            raise IdentityError(f"the revocation list is damaged: {error}") from error
        if not proven:
            raise IdentityError("the revocation list is not signed by this fleet's CA")
        return cls(frozenset(entry.serial_number for entry in crl))

    def revokes(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is on the list."""
        return certificate.serial_number in self.serials


def _signed(crl: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        return crl.is_signature_valid(key)
    except (InvalidSignature, TypeError):
        return False
