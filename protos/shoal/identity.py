"""Who this process is: a directory with a certificate, its key, and whom to trust."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from shoal.errors import IdentityError, IdentityMissing

CA_FILE, CERT_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
POLICY_KEY_FILE = "policy.pub"  # 32 bytes, as hexadecimal
PUBLIC_KEY_BYTES = 32
RELAY_URI = "urn:shoal:role:relay"
"""An alternative name in the certificate of a relay, by which it may speak for its devices."""


@dataclass(frozen=True, slots=True)
class Pems:
    """What gRPC wants to be given, PEM bytes."""

    ca: bytes
    cert: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate, its key, and the fleet's CA, in one directory.

    identity = Identity.load(Path("/var/lib/shoal/identity"))
    client.tls_set_context(identity.ssl_context())

    Attributes:
        name: The common name of the certificate.
        policy_public_key: Ed25519, 32 bytes; None where no policies are verified.
    """

    directory: Path
    name: str
    policy_public_key: bytes | None

    @classmethod
    def load(cls, directory: Path) -> Identity:
        """Reads an identity and checks that it can be used.

        Raises:
            IdentityError: A file is missing, unreadable, malformed, or a key others can read.
        """
        directory = Path(directory)
        if not os.path.isdir(directory):  # noqa: PTH112 Path.is_dir raises where it may not look
            raise IdentityMissing(
                f"identity {directory}: no such directory; make one, or point `identity` at it"
            )
        for name in (CA_FILE, CERT_FILE, KEY_FILE):
            _read(directory / name)
        mode = stat.S_IMODE((directory / KEY_FILE).stat().st_mode)
        if mode & 0o077:
            raise IdentityError(
                f"{directory / KEY_FILE}: others can read it (mode {mode:04o}); chmod 600 it"
            )
        identity = cls(
            directory,
            _common_name(directory / CERT_FILE),
            _public_key(directory / POLICY_KEY_FILE),
        )
        identity.ssl_context()
        return identity

    def ssl_context(self) -> ssl.SSLContext:
        """A client's context: TLS 1.2 or newer, our certificate, and only our CA trusted.

        Raises:
            IdentityError: Certificate, key or CA are malformed or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.directory / CA_FILE)
            # With a password given, OpenSSL never asks the terminal for one.
            context.load_cert_chain(
                self.directory / CERT_FILE, self.directory / KEY_FILE, password=""
            )
        except (ssl.SSLError, OSError) as error:
            raise IdentityError(
                f"identity {self.directory}: certificate, key or CA cannot be used ({error}); "
                "issue it again"
            ) from error
        return context

    def is_relay(self) -> bool:
        """Whether the certificate is a relay's: a server for devices, who may speak for them.

        Raises:
            IdentityError: It cannot be read.
        """
        path = self.directory / CERT_FILE
        try:
            certificate = x509.load_pem_x509_certificate(_read(path))
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return False
        except ValueError as error:
            raise IdentityError(f"{path}: not a certificate ({error}); issue it again") from error
        return RELAY_URI in names.value.get_values_for_type(x509.UniformResourceIdentifier)

    def read_pems(self) -> Pems:
        """The files' contents, for gRPC.

        Raises:
            IdentityError: A file is missing or unreadable.
        """
        ca, cert, key = (_read(self.directory / name) for name in (CA_FILE, CERT_FILE, KEY_FILE))
        return Pems(ca, cert, key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"{path}: {error.strerror or error}; an identity holds "
            f"{CA_FILE}, {CERT_FILE} and {KEY_FILE}"
        ) from error


def _common_name(path: Path) -> str:
    try:
        names = x509.load_pem_x509_certificate(_read(path)).subject.get_attributes_for_oid(
            NameOID.COMMON_NAME
        )
    except ValueError as error:
        raise IdentityError(f"{path}: not a certificate ({error}); issue it again") from error
    if len(names) != 1:
        raise IdentityError(f"{path}: must have one common name, it has {len(names)}")
    return str(names[0].value)


def _public_key(path: Path) -> bytes | None:
    if not path.exists():
        return None
    try:
        key = bytes.fromhex(_read(path).decode("ascii").strip())
    except ValueError as error:
        raise IdentityError(f"{path}: must be {PUBLIC_KEY_BYTES} bytes as hexadecimal") from error
    if len(key) != PUBLIC_KEY_BYTES:
        raise IdentityError(f"{path}: must be {PUBLIC_KEY_BYTES} bytes, it has {len(key)}")
    return key
