"""The fleet CA: what it certifies, what it refuses, and what lies on disk."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.errors import ConfigError, IdentityError
from shoal.identity import Identity
from shoalctl.pki.certificates import hosts_of
from shoalctl.pki.delegates import DelegationOffice
from shoalctl.pki.pki import FleetPki, Role

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def pki(tmp_path: Path) -> FleetPki:
    return FleetPki.create(tmp_path / "pki", "demo")


def certificate(identity: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((identity / "cert.pem").read_bytes())


def usages(identity: Path) -> list[x509.ObjectIdentifier]:
    return list(
        certificate(identity).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    )


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.PEM)


def handshake(server: Path, client: Path, host: str) -> None:
    """A whole mutual handshake in memory; raises ssl.SSLError if either side refuses."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, identity in ((server_context, server), (client_context, client)):
        context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
        context.load_verify_locations(identity / "ca.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_context.wrap_bio(to_client, to_server, server_hostname=host),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_an_identity_is_what_a_device_loads(pki: FleetPki) -> None:
    directory = pki.issue("pi-1", Role.DEVICE)
    identity = Identity.load(directory)
    assert identity.name == "pi-1"
    assert identity.policy_public_key == pki.policy_public_key
    assert sorted(path.name for path in directory.iterdir()) == [
        "ca.pem",
        "cert.pem",
        "key.pem",
        "policy.pub",
    ]


def test_only_the_learner_gets_the_key_that_signs_policies(pki: FleetPki) -> None:
    holders = [role for role in Role if (pki.issue(_name(role), role) / "policy.key").exists()]
    assert holders == [Role.LEARNER]


def test_the_learners_policy_key_belongs_to_the_public_key_on_devices(pki: FleetPki) -> None:
    learner = pki.issue("learner", Role.LEARNER)
    seed = bytes.fromhex((learner / "policy.key").read_text())
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    assert key.public_key().public_bytes_raw() == pki.policy_public_key


def test_private_files_are_readable_by_their_owner_only(pki: FleetPki) -> None:
    learner = pki.issue("learner", Role.LEARNER)
    secret = [learner / "key.pem", learner / "policy.key"]
    secret += [pki.directory / "ca.key", pki.directory / "policy.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (learner, pki.directory)} == {0o700}


def test_a_loaded_fleet_goes_on_where_the_created_one_stopped(pki: FleetPki) -> None:
    loaded = FleetPki.load(pki.directory)
    assert loaded.fleet == "demo"
    assert loaded.policy_public_key == pki.policy_public_key
    handshake(pki.issue("learner", Role.LEARNER), loaded.issue("pi-1", Role.DEVICE), "localhost")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "shoal.example.org", "10.0.0.7"])
def test_a_server_answers_to_loopback_and_to_the_hosts_it_was_given(
    pki: FleetPki, host: str
) -> None:
    broker = pki.issue("broker", Role.BROKER, sans=["shoal.example.org", "10.0.0.7"])
    handshake(broker, pki.issue("pi-1", Role.DEVICE), host)


def test_a_server_does_not_answer_to_another_host(pki: FleetPki) -> None:
    broker = pki.issue("broker", Role.BROKER)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname mismatch"):
        handshake(broker, pki.issue("pi-1", Role.DEVICE), "elsewhere.example.org")


@pytest.mark.parametrize("role", list(Role))
def test_only_roles_that_serve_may_be_taken_for_a_server(pki: FleetPki, role: Role) -> None:
    identity = pki.issue(_name(role), role)
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usages(identity)
    assert (ExtendedKeyUsageOID.SERVER_AUTH in usages(identity)) is role.serves


def test_a_device_cannot_pose_as_a_server(pki: FleetPki) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(pki.issue("pi-1", Role.DEVICE), pki.issue("pi-2", Role.DEVICE), "localhost")


def test_a_certificate_of_another_fleet_is_refused_in_both_directions(
    pki: FleetPki, tmp_path: Path
) -> None:
    other = FleetPki.create(tmp_path / "other", "demo")
    broker, foreign = pki.issue("broker", Role.BROKER), other.issue("pi-1", Role.DEVICE)
    with pytest.raises(ssl.SSLError):
        handshake(broker, foreign, "localhost")
    with pytest.raises(ssl.SSLError):
        handshake(other.issue("broker", Role.BROKER), pki.issue("pi-1", Role.DEVICE), "localhost")


@pytest.mark.parametrize(
    "name", ["learner", "operator", "broker", "server", "", "Pi", "pi_1", "a/b", "a.b", "#", "../x"]
)
def test_a_device_may_not_take_a_reserved_or_malformed_name(pki: FleetPki, name: str) -> None:
    with pytest.raises(ConfigError):
        pki.issue(name, Role.DEVICE)
    assert not (pki.directory / "identities").exists()


def test_a_service_is_named_after_its_role(pki: FleetPki) -> None:
    with pytest.raises(ConfigError, match="named 'learner'"):
        pki.issue("pi-1", Role.LEARNER)


def test_host_names_are_for_those_who_serve(pki: FleetPki) -> None:
    with pytest.raises(ConfigError, match="serves nobody"):
        pki.issue("pi-1", Role.DEVICE, sans=["pi-1.local"])


@pytest.mark.parametrize("host", ["", "a b", "http://x", "host:8883", "ümlaut.example"])
def test_a_malformed_host_is_refused(pki: FleetPki, host: str) -> None:
    with pytest.raises(ConfigError, match="not a host name"):
        pki.issue("broker", Role.BROKER, sans=[host])


def test_an_existing_identity_is_never_overwritten(pki: FleetPki) -> None:
    before = (pki.issue("pi-1", Role.DEVICE) / "key.pem").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        pki.issue("pi-1", Role.DEVICE)
    assert (pki.directory / "identities" / "pi-1" / "key.pem").read_bytes() == before


def test_certificates_are_dated_by_the_clock_and_begin_a_little_earlier(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo", clock=lambda: NOW)
    issued = certificate(pki.issue("pi-1", Role.DEVICE, lifetime=timedelta(hours=1)))
    assert issued.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert issued.not_valid_after_utc == NOW + timedelta(hours=1)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    broker = pki.issue("broker", Role.BROKER)
    expired = pki.issue("pi-1", Role.DEVICE, lifetime=timedelta(seconds=-1))
    with pytest.raises(ssl.SSLError, match="expired"):
        handshake(broker, expired, "localhost")


def test_a_signing_request_yields_a_certificate_for_the_name_the_fleet_decides(
    pki: FleetPki, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = pki.sign_csr(request(key, "learner"), "pi-1", Role.DEVICE)
    issued = x509.load_pem_x509_certificate(pem)
    assert issued.subject.rfc4514_string() == "CN=pi-1"
    assert issued.public_key() == key.public_key()
    issued.verify_directly_issued_by(pki.issuer)
    pki.issuer.verify_directly_issued_by(pki.ca)
    assert pem.endswith(pki.chain_pem)


def test_a_damaged_or_unproven_signing_request_is_refused(pki: FleetPki) -> None:
    good = x509.load_pem_x509_csr(request(ec.generate_private_key(ec.SECP256R1()), "pi-1"))
    der = bytearray(good.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    weak = request(rsa.generate_private_key(public_exponent=65537, key_size=2048), "pi-1")
    for pem in (b"", b"not a request", forged, weak):
        with pytest.raises(IdentityError, match="signing request"):
            pki.sign_csr(pem, "pi-1", Role.DEVICE)


def test_the_intermediate_is_certified_anew_and_what_it_issued_stays_good(tmp_path: Path) -> None:
    safe, later = tmp_path / "safe", NOW + timedelta(days=1800)
    pki = FleetPki.create(tmp_path / "pki", "demo", offline=safe, clock=lambda: NOW)
    before = certificate(pki.issue("pi-1", Role.DEVICE, lifetime=timedelta(days=4000)))
    assert before.not_valid_after_utc == pki.issuer.not_valid_after_utc  # not beyond its issuer's
    renewed = FleetPki.load(pki.directory, clock=lambda: later).renew_intermediate(safe)
    assert renewed.issuer.not_valid_after_utc > pki.issuer.not_valid_after_utc
    before.verify_directly_issued_by(renewed.issuer)
    loaded = FleetPki.load(pki.directory, clock=lambda: later)
    assert loaded.issuer == renewed.issuer
    after = certificate(loaded.issue("pi-2", Role.DEVICE))
    assert after.not_valid_after_utc > pki.issuer.not_valid_after_utc


@pytest.mark.parametrize("name", ["broker", "learner", "operator", "pi-1"])
def test_an_identity_is_renewed_with_its_key_and_hosts_and_without_the_key_of_policies(
    tmp_path: Path, name: str
) -> None:
    pki = FleetPki.create(tmp_path / "pki", "demo", clock=lambda: NOW, offline=tmp_path / "safe")
    role = Role(name) if name in list(Role) else Role.DEVICE
    hosts = ["shoal.example.org", "10.0.0.7"] if role.serves else []
    office = DelegationOffice(tmp_path / "safe" / "policy.key", "demo", pki.policy_public_key)
    delegate = office.delegate(present=tmp_path / "none") if name == "learner" else None
    identity = pki.issue(name, role, sans=hosts, delegate=delegate)
    before = certificate(identity)
    later = FleetPki.load(pki.directory, clock=lambda: NOW + timedelta(days=300))
    assert later.renew(identity) == certificate(identity)
    after = certificate(identity)
    assert after.not_valid_after_utc == before.not_valid_after_utc + timedelta(days=300)
    assert (after.subject, after.public_key()) == (before.subject, before.public_key())
    assert hosts_of(after) == hosts_of(before) == tuple(hosts)
    assert Identity.load(identity).name == name


def test_an_identity_of_another_fleet_is_not_renewed(pki: FleetPki, tmp_path: Path) -> None:
    other = FleetPki.create(tmp_path / "other", "demo").issue("pi-1", Role.DEVICE)
    for identity in (other, tmp_path / "nowhere"):
        with pytest.raises(IdentityError, match="no certificate of demo"):
            pki.renew(identity)


def test_an_intermediate_that_has_ended_issues_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    FleetPki.create(tmp_path / "pki", "demo", clock=lambda: NOW)
    later = FleetPki.load(tmp_path / "pki", clock=lambda: NOW + timedelta(days=1826))
    with pytest.raises(IdentityError, match="renew-intermediate"):
        later.issue("pi-1", Role.DEVICE)


def test_the_root_of_another_fleet_does_not_certify_the_intermediate(
    pki: FleetPki, tmp_path: Path
) -> None:
    other = FleetPki.create(tmp_path / "other", "demo")
    for root in (other.directory, tmp_path):
        with pytest.raises(IdentityError, match="is not the key of"):
            pki.renew_intermediate(root)


def _name(role: Role) -> str:
    return "pi-1" if role is Role.DEVICE else str(role)
