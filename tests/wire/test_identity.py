"""An identity is whole, private and usable, or the error says which file to mend."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.errors import IdentityError
from shoal.identity import CA_FILE, CERT_FILE, KEY_FILE, POLICY_KEY_FILE, Identity

PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8
NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def self_signed(key: ec.EllipticCurvePrivateKey, *names: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + dt.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(PEM)


def private_bytes(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(PEM, PKCS8, encryption)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = self_signed(key, "pi-1")
    (tmp_path / CA_FILE).write_bytes(certificate)
    (tmp_path / CERT_FILE).write_bytes(certificate)
    (tmp_path / KEY_FILE).write_bytes(private_bytes(key))
    (tmp_path / KEY_FILE).chmod(0o600)
    (tmp_path / POLICY_KEY_FILE).write_text(bytes(range(32)).hex() + "\n", encoding="ascii")
    return tmp_path


def refused(directory: Path, *parts: str, code: int = 2) -> None:
    with pytest.raises(IdentityError) as caught:
        Identity.load(directory)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_loads_name_keys_and_a_strict_context(directory: Path) -> None:
    identity = Identity.load(directory)
    assert identity.name == "pi-1"
    assert identity.policy_public_key == bytes(range(32))
    context = identity.ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1, "only the fleet's own CA is trusted"
    assert identity.read_pems().key == (directory / KEY_FILE).read_bytes()


def test_where_no_policy_is_verified_there_is_no_policy_key(directory: Path) -> None:
    (directory / POLICY_KEY_FILE).unlink()
    assert Identity.load(directory).policy_public_key is None


@pytest.mark.parametrize("name", [CA_FILE, CERT_FILE, KEY_FILE])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    refused(directory, name)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "no such directory", code=4)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_can_read_is_refused(directory: Path, mode: int) -> None:
    (directory / KEY_FILE).chmod(mode)
    refused(directory, KEY_FILE, "chmod 600")


@pytest.mark.parametrize("name", [CA_FILE, CERT_FILE, KEY_FILE])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\x00", b"-----BEGIN CERTIFICATE-----"])
def test_a_damaged_file_is_refused(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    refused(directory, str(directory))


def test_a_key_of_another_certificate_is_refused(directory: Path) -> None:
    (directory / KEY_FILE).write_bytes(private_bytes(ec.generate_private_key(ec.SECP256R1())))
    refused(directory, "cannot be used")


def test_a_key_under_a_password_is_refused_without_asking_for_it(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (directory / CERT_FILE).write_bytes(self_signed(key, "pi-1"))
    (directory / KEY_FILE).write_bytes(private_bytes(key, b"secret"))
    refused(directory, "cannot be used")


@pytest.mark.parametrize("names", [(), ("one", "two")])
def test_a_certificate_has_one_common_name(directory: Path, names: tuple[str, ...]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (directory / CERT_FILE).write_bytes(self_signed(key, *names))
    refused(directory, CERT_FILE, "one common name")


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, "00" * 33, "é"])
def test_a_damaged_policy_key_is_refused(directory: Path, text: str) -> None:
    (directory / POLICY_KEY_FILE).write_text(text, encoding="utf-8")
    refused(directory, POLICY_KEY_FILE, "32 bytes")
