"""What devices ask for, as it came, and whether it proves what it says: no database, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.enrollment import (
    CHALLENGE_BYTES,
    MAX_PROOF_BYTES,
    MAX_REQUEST_DER_BYTES,
    MAX_TOKEN_CHARACTERS,
    enroll_proof,
    is_proven,
    renew_proof,
)
from shoal.errors import ConfigError, IdentityError
from shoal.topics import check_device_id
from shoalctl.enrollment.refusal import EnrollmentRefused, Reason
from shoalctl.pki.certificates import requested_key


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who asks to be enrolled: a valid name, and a key that is held."""

    device_id: str
    key: ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks for a renewal: a certificate of this fleet, whose key is held."""

    device_id: str
    key: ec.EllipticCurvePublicKey
    certificate: x509.Certificate


@dataclass(frozen=True, slots=True)
class Member:
    """A device and its new certificate, with what leads to the root, PEM."""

    device_id: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class Application:
    """A request to enrol, as it came.

    Attributes:
        challenge: The one it answers.
        csr: The signing request, DER.
        token: Empty if there is none.
        proof: By the key of the signing request.
        address: Where it came from.
    """

    challenge: bytes
    csr: bytes
    token: str
    proof: bytes
    address: str

    def check_sizes(self) -> None:
        """Looks at the lengths alone.

        Raises:
            EnrollmentRefused: A field is missing or too long.
        """
        _check_sizes(self.challenge, self.csr, self.proof)
        if len(self.token) > MAX_TOKEN_CHARACTERS:
            raise _wrong_size()

    def read(self) -> Applicant:
        """Reads the signing request.

        Raises:
            EnrollmentRefused: It is damaged, names no device, or its key is not the sender's.
        """
        try:
            csr = x509.load_der_x509_csr(self.csr)
            key = requested_key(csr.public_bytes(serialization.Encoding.PEM))
        except (ValueError, IdentityError) as error:
            raise EnrollmentRefused(Reason.MALFORMED, f"the signing request: {error}") from error
        device_id = device_id_of(csr.subject)
        _require_proof(
            key, self.proof, enroll_proof(self.challenge, self.csr, self.token), device_id
        )
        return Applicant(device_id, key)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A request to renew, as it came: the present certificate, DER, and a proof by its key."""

    challenge: bytes
    certificate: bytes
    proof: bytes

    def check_sizes(self) -> None:
        """Looks at the lengths alone.

        Raises:
            EnrollmentRefused: A field is missing or too long.
        """
        _check_sizes(self.challenge, self.certificate, self.proof)

    def read(self, issuer: x509.Certificate) -> Holder:
        """Reads the certificate.

        Raises:
            EnrollmentRefused: It is damaged, names no device, is not of `issuer`, or its key is not
                the sender's.
        """
        try:
            certificate = x509.load_der_x509_certificate(self.certificate)
            key = certificate.public_key()
        except ValueError as error:
            raise EnrollmentRefused(Reason.MALFORMED, f"the certificate: {error}") from error
        device_id = device_id_of(certificate.subject)
        if not isinstance(key, ec.EllipticCurvePublicKey) or not is_issued_by(certificate, issuer):
            raise EnrollmentRefused(
                Reason.FOREIGN_CERTIFICATE,
                "the certificate is not one of this fleet: enrol anew",
                device_id=device_id,
            )
        _require_proof(key, self.proof, renew_proof(self.challenge, self.certificate), device_id)
        return Holder(device_id, key, certificate)


def device_id_of(subject: x509.Name) -> str:
    """The device that a subject names.

    Raises:
        EnrollmentRefused: It names none, or one that no device may have.
    """
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(names) != 1:
        raise EnrollmentRefused(
            Reason.NAME, f"there must be one common name, the device id; there are {len(names)}"
        )
    try:
        return check_device_id(names[0])
    except ConfigError as error:
        raise EnrollmentRefused(Reason.NAME, str(error)[:200]) from error


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether a certificate carries the signature of an issuer."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_sizes(challenge: bytes, der: bytes, proof: bytes) -> None:
    if (
        len(challenge) != CHALLENGE_BYTES
        or not 0 < len(der) <= MAX_REQUEST_DER_BYTES
        or not 0 < len(proof) <= MAX_PROOF_BYTES
    ):
        raise _wrong_size()


def _wrong_size() -> EnrollmentRefused:
    return EnrollmentRefused(Reason.MALFORMED, "a field of the request is missing or too long")


def _require_proof(
    key: ec.EllipticCurvePublicKey, proof: bytes, statement: bytes, device_id: str
) -> None:
    if not is_proven(key, proof, statement):
        raise EnrollmentRefused(
            Reason.PROOF, "the request is not signed by the key it is about", device_id=device_id
        )
