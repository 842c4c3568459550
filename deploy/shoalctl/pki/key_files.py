"""How keys and certificates lie on disk: private ones readable by their owner only."""

import os
import shutil
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import IdentityError

PRIVATE, PUBLIC = 0o600, 0o644


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate, PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key, PKCS #8, PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def private_hex(key: Ed25519PrivateKey) -> bytes:
    """The private key, 32 bytes, as hexadecimal."""
    return key.private_bytes_raw().hex().encode("ascii") + b"\n"


def public_hex(key: Ed25519PublicKey) -> bytes:
    """The public key, 32 bytes, as hexadecimal."""
    return key.public_bytes_raw().hex().encode("ascii") + b"\n"


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Writes a file that must not exist yet.

    Raises:
        OSError: It exists, or can't be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_directory(target: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Writes a directory that appears whole or not at all.

    Args:
        target: Must not exist yet.
        files: Content and mode by name.

    Raises:
        OSError: It can't be written.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, (content, mode) in files.items():
            write_new(staging / name, content, mode)
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _secret(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise IdentityError(f"others may read {path}: set its mode to 600 (chmod 600 {path})")
    return path.read_bytes()


def read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """An EC key; None if the file is missing.

    Raises:
        IdentityError: Others may read it.
        ValueError: It is damaged, or another kind of key.
        OSError: It can't be read.
    """
    if not path.exists():
        return None
    key = serialization.load_pem_private_key(_secret(path), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} holds another kind of key")  # noqa: TRY004 - of the content
    return key


def read_policy_key(path: Path) -> Ed25519PrivateKey | None:
    """The key that signs policies; None if the file is missing.

    Raises:
        IdentityError: Others may read it.
        ValueError: It is damaged.
        OSError: It can't be read.
    """
    if not path.exists():
        return None
    seed = bytes.fromhex(_secret(path).decode("ascii"))
    return Ed25519PrivateKey.from_private_bytes(seed)
