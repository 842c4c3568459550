"""How the fleet's certificates look: values in, certificates out, no file and no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.errors import ConfigError, IdentityError

BACKDATE = timedelta(minutes=5)
"""How long before their issue certificates begin: for peers whose clock is a little slow."""
CA_LIFETIME = timedelta(days=3650)
INTERMEDIATE_LIFETIME = timedelta(days=1825)
LEAF_LIFETIME = timedelta(days=365)
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

_CA_NAME = "Shoal fleet CA"
_INTERMEDIATE_NAME = "Shoal fleet intermediate"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names.

    Attributes:
        name: The CN, and all of the subject: NATS matches the whole of it, Mosquitto only the CN.
        hosts: Host names and addresses it serves on, beside the loopback ones; None if it never
            serves, and then no peer takes it for a server.
        uris: Other names that say what it may do.
    """

    name: str
    hosts: tuple[str, ...] | None = None
    uris: tuple[str, ...] = ()


def ca_certificate(
    key: ec.EllipticCurvePrivateKey, fleet: str, *, now: datetime
) -> x509.Certificate:
    """The self-signed root of a fleet; its subject's organisation (O) is the fleet's name."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, fleet),
            x509.NameAttribute(NameOID.COMMON_NAME, _CA_NAME),
        ]
    )
    return (
        _builder(name, name, key.public_key(), now, CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_key_usage(certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def intermediate_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
) -> x509.Certificate:
    """What issues the fleet's certificates day by day, so that the root's key can lie in a safe."""
    name = x509.Name(
        [
            *ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME),
            x509.NameAttribute(NameOID.COMMON_NAME, _INTERMEDIATE_NAME),
        ]
    )
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        _builder(name, ca.subject, key, now, INTERMEDIATE_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(certificates=True), critical=True)
        .add_extension(authority, critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def revocation_list(
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    revoked: Mapping[int, datetime],
    *,
    now: datetime,
) -> x509.CertificateRevocationList:
    """The CRL of an issuer: serial numbers, and since when they are not to be trusted.

    It holds as long as its issuer does: a broker turns everybody away when its CRL runs out.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - BACKDATE)
        .next_update(issuer.not_valid_after_utc)
        .add_extension(x509.CRLNumber(int(now.timestamp() * 1000)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    for serial, since in sorted(revoked.items()):
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since).build()
        )
    return builder.sign(issuer_key, hashes.SHA256())


def fleet_of(ca: x509.Certificate) -> str:
    """The name of the fleet a root belongs to.

    Raises:
        ValueError: It names none.
    """
    values = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(values) != 1 or not isinstance(values[0].value, str):
        raise ValueError("the subject of ca.pem names no fleet")
    return values[0].value


def leaf_certificate(
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    subject: Subject,
    *,
    now: datetime,
    lifetime: timedelta,
) -> x509.Certificate:
    """The certificate of one device or service; it does not outlive its issuer.

    Raises:
        ConfigError: A host is not a host name or address.
    """
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.name)])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        _builder(name, issuer.subject, key, now, min(lifetime, issuer.not_valid_after_utc - now))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(authority, critical=False)
    )
    if subject.hosts is not None:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName(
            [
                *_host_names((*LOOPBACK_HOSTS, *subject.hosts)),
                *map(x509.UniformResourceIdentifier, subject.uris),
            ]
        )
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def common_name(certificate: x509.Certificate) -> str:
    """Whom a certificate names."""
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The host names and addresses of a certificate, beside the loopback ones."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(host for host in (str(name.value) for name in names) if host not in LOOPBACK_HOSTS)


def requested_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key a signing request proves to hold.

    Raises:
        IdentityError: The request is damaged, proves nothing, or holds another kind of key.
    """
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        proven = request.is_signature_valid
    except (ValueError, InvalidSignature) as error:
        raise IdentityError(f"the signing request is damaged ({error}): make a new one") from error
    if not proven:
        raise IdentityError("the signing request is not signed by its own key: make a new one")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the signing request holds another kind of key: make an EC P-256 one")
    return key


def _host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_host_name(host) for host in dict.fromkeys(hosts)]


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(label.replace("-", "").isalnum() and label.isascii() for label in labels):
        raise ConfigError(f"{host!r} is not a host name or address, e.g. shoal.example.org")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
