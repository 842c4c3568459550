"""What a device is installed from: files, the manifest that names them, and its signature.

The manifest is canonical JSON and says the size and sha256 of every file; the fleet's key of
policies signs it. Nothing of a bundle is believed before both are checked, and every size is
compared with a limit before anything of that size is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import BundleRefused, ConfigError
from shoal.topics import check_fleet

SCHEMA: Final = 1
SIGNATURE_PREFIX: Final = b"shoal bundle v1\n"
MANIFEST_NAME, SIGNATURE_NAME, INSTALLER_NAME = "manifest.json", "manifest.sig", "install.sh"
ARCHES: Final = ("aarch64", "x86_64")

MAX_MANIFEST_BYTES: Final = 256 << 10
SIGNATURE_BYTES: Final = 64
MAX_FILES: Final = 512
MAX_FILE_BYTES: Final = 512 << 20
MAX_BUNDLE_BYTES: Final = 1 << 30
"""Of all files together."""
MAX_PATH_CHARACTERS: Final = 200
MAX_DEPTH: Final = 6
_PIECE_BYTES: Final = 1 << 20

_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*(/[A-Za-z0-9_][A-Za-z0-9._+!-]*)*")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FORMS: Final = {
    "version": re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}"),
    "shoal_version": re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,63}"),
    "arch": re.compile("|".join(ARCHES)),
    "python": re.compile(r"3\.[0-9]{1,2}"),
    "created": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"),
    "min_glibc": re.compile(r"2\.[0-9]{1,3}"),
    "ca_fingerprint": _DIGEST,
    "enrollment": re.compile(r"[0-9A-Za-z.:\[\]%_-]{1,300}:[0-9]{1,5}"),
}


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a bundle.

    Attributes:
        path: Where it lies, relative, with forward slashes.
        size: Bytes.
        sha256: Its digest, hexadecimal.
    """

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BundleRefused: One is not valid.
        """
        check_path(self.path)
        if type(self.size) is not int or self.size < 0:
            raise BundleRefused("malformed", f"{self.path}: {self.size!r} is no size")
        if self.size > MAX_FILE_BYTES:
            raise BundleRefused(
                "limit", f"{self.path}: {self.size} bytes are over the limit of {MAX_FILE_BYTES}"
            )
        if not _matches(self.sha256, _DIGEST):
            raise BundleRefused("malformed", f"{self.path}: its sha256 is none")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a bundle, and for whom.

        manifest = verify(content, signature, public_key)  # or Manifest.parse(content), unsigned
        check_files(directory, manifest)

    Attributes:
        fleet: Whose devices it is for.
        version: Of the bundle.
        shoal_version: Of Shoal in it.
        arch: `aarch64` or `x86_64`.
        python: `3.11`: minor versions are not interchangeable.
        created: When its newest content was made, `2026-01-31T12:00:00Z`.
        min_glibc: The oldest C library that its wheels run with, `2.28`.
        ca_fingerprint: The sha256 of the fleet's CA, hexadecimal.
        enrollment: Where the enrolment service is, `host:port`.
        files: All of it but manifest and signature, by path.
        more: What a newer Shoal says beside it: not looked at, and part of the digest.
    """

    fleet: str
    version: str
    shoal_version: str
    arch: str
    python: str
    created: str
    min_glibc: str
    ca_fingerprint: str
    enrollment: str
    files: tuple[BundleFile, ...] = field(default=())
    more: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BundleRefused: One is not valid, or all files together are too large.
        """
        try:
            check_fleet(self.fleet)
        except (ConfigError, TypeError) as error:
            raise BundleRefused("malformed", f"manifest: fleet: {error}") from error
        for name, form in _FORMS.items():
            value = getattr(self, name)
            if not _matches(value, form):
                raise BundleRefused("malformed", f"manifest: {name} = {str(value)[:80]!r}")
        if len(self.files) > MAX_FILES:
            raise BundleRefused("limit", f"manifest: over {MAX_FILES} files")
        total = sum(file.size for file in self.files)
        if total > MAX_BUNDLE_BYTES:
            raise BundleRefused(
                "limit", f"manifest: {total} bytes are over the limit of {MAX_BUNDLE_BYTES}"
            )
        _check_paths([file.path for file in self.files])

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Reads a manifest, whose signature is not looked at.

        Raises:
            BundleRefused: It is not one, or not in its one canonical form.
        """
        if len(content) > MAX_MANIFEST_BYTES:
            raise BundleRefused("limit", f"manifest: over {MAX_MANIFEST_BYTES} bytes")
        try:
            found = json.loads(content.decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise BundleRefused("malformed", f"manifest: {str(error)[:200]}") from error
        if not isinstance(found, Mapping):
            raise BundleRefused("malformed", "manifest: not a JSON object")
        if found.get("schema") != SCHEMA:
            raise BundleRefused(
                "schema",
                f"manifest: schema {str(found.get('schema'))[:40]}, this Shoal reads {SCHEMA}: "
                "a bundle of a newer one needs a newer installer",
            )
        names = [name for name in cls.__slots__ if name not in ("files", "more")]
        missing = [name for name in (*names, "files") if name not in found]
        if missing:
            raise BundleRefused("malformed", f"manifest: without {', '.join(missing)}")
        values = {name: found[name] for name in names}
        more = {name: found[name] for name in found.keys() - {*names, "files", "schema"}}
        manifest = cls(**values, files=_files(found["files"]), more=more)
        if manifest.encode() != content:  # else it would have two digests
            raise BundleRefused("malformed", "manifest: not canonical JSON")
        return manifest

    def encode(self) -> bytes:
        """The canonical bytes: what is signed, and what the digest is of."""
        known = asdict(self)
        return _canonical({**known.pop("more"), "schema": SCHEMA, **known})

    @property
    def digest(self) -> str:
        """The sha256 of the canonical bytes, hexadecimal: by it a bundle is known."""
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)


def _matches(value: object, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def check_path(path: str) -> str:
    """Returns the path of a bundle's file if it can't leave the bundle's directory.

    Raises:
        BundleRefused: It is absolute, has a `..`, or isn't plain.
    """
    segments = path.split("/") if _matches(path, _PATH) else []
    if not segments or len(path) > MAX_PATH_CHARACTERS or len(segments) > MAX_DEPTH:
        raise BundleRefused("path", f"{str(path)[:80]!r}: not a path within a bundle")
    if path in {MANIFEST_NAME, SIGNATURE_NAME}:
        raise BundleRefused("path", f"{path}: that name is the bundle's own")
    return path


def sign(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """The signature of a manifest, 64 bytes."""
    return key.sign(SIGNATURE_PREFIX + manifest.encode())


def verify(content: bytes, signature: bytes, public_key: bytes) -> Manifest:
    """Reads a manifest that the fleet's key signed.

    Args:
        content: The manifest, as it lies in the bundle.
        signature: 64 bytes.
        public_key: The fleet's policy public key, 32 bytes.

    Raises:
        BundleRefused: The signature is not that key's, or it is no manifest.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleRefused("limit", f"manifest: over {MAX_MANIFEST_BYTES} bytes")
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, SIGNATURE_PREFIX + content)
    except (InvalidSignature, ValueError) as error:
        raise BundleRefused(
            "signature", "the bundle is not signed by this fleet, or was changed since"
        ) from error
    return Manifest.parse(content)


def read_manifest(directory: Path, public_key: bytes | None) -> Manifest:
    """The manifest of an unpacked bundle.

    Args:
        directory: Where it lies.
        public_key: Whose signature it must have, 32 bytes; None: none is asked for, where the
            way that the bundle came by is trusted.

    Raises:
        BundleRefused: It is missing, too large, not signed by that key, or no manifest.
    """
    content = _read(directory / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    if public_key is None:
        return Manifest.parse(content)
    return verify(content, _read(directory / SIGNATURE_NAME, SIGNATURE_BYTES), public_key)


def check_files(directory: Path, manifest: Manifest) -> None:
    """Checks that an unpacked bundle holds what its manifest says, and nothing else.

    The directory must be its owner's alone to write: who can change it later makes this void.

    Raises:
        BundleRefused: A file is missing, changed, more than there should be, or no plain file.
    """
    expected = {file.path: file for file in manifest.files}
    found = set(_walk(directory, {*expected, MANIFEST_NAME, SIGNATURE_NAME}))
    for path, file in expected.items():
        if path not in found:
            raise BundleRefused("files", f"the bundle is incomplete: {path} is missing")
        if _sha256(directory / path, file.size) != file.sha256:
            raise BundleRefused("digest", f"{path} is not what the bundle's manifest says")


def _walk(directory: Path, expected: set[str]) -> list[str]:
    folders = {"/".join(path.split("/")[:end]) for path in expected for end in range(1, MAX_DEPTH)}
    found: list[str] = []
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            entries = list(os.scandir(directory / above))
        except OSError as error:
            raise BundleRefused("files", f"{directory / above}: {error.strerror}") from error
        for entry in entries:
            path = f"{above}/{entry.name}" if above else entry.name
            if entry.is_dir(follow_symlinks=False) and path in folders - expected:
                waiting.append(path)
            elif entry.is_file(follow_symlinks=False) and path in expected:
                found.append(path)
            else:
                raise BundleRefused("files", f"{path[:200]!r} does not belong into the bundle")
    return found


def _open(path: Path) -> tuple[int, int]:
    """A descriptor of a plain file, and its size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BundleRefused("files", f"{path}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise BundleRefused("files", f"{path}: not a plain file")
    return descriptor, found.st_size


def _read(path: Path, limit_bytes: int) -> bytes:
    descriptor, size = _open(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit_bytes:
            raise BundleRefused("limit", f"{path}: over {limit_bytes} bytes")
        return file.read(limit_bytes)


def _sha256(path: Path, size: int) -> str | None:
    """The digest of a file; None if it has another size."""
    descriptor, found = _open(path)
    with os.fdopen(descriptor, "rb") as file:
        if found != size:
            return None
        digest, left = hashlib.sha256(), size
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _check_paths(paths: Sequence[str]) -> None:
    if list(paths) != sorted(set(paths)):
        raise BundleRefused("malformed", "manifest: files must be in order, each of them once")
    folders = {path[:at] for path in paths for at, char in enumerate(path) if char == "/"}
    both = folders & set(paths)
    if both:
        raise BundleRefused("path", f"manifest: {min(both)} is a file and a directory")


def _files(found: object) -> tuple[BundleFile, ...]:
    if not isinstance(found, list) or len(found) > MAX_FILES:
        raise BundleRefused("limit", f"manifest: files must be a list of at most {MAX_FILES}")
    keys = {"path", "size", "sha256"}
    if not all(isinstance(entry, Mapping) and keys <= entry.keys() for entry in found):
        raise BundleRefused("malformed", "manifest: each file needs path, size and sha256")
    return tuple(BundleFile(entry["path"], entry["size"], entry["sha256"]) for entry in found)


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")
