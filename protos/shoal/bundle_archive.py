"""A bundle as one file: a plain tar that holds the manifest, its signature and the files, in order.

The reader takes what `pack` writes and nothing else: plain files whose names, order and sizes are
those of the manifest that came first. So there is no link to follow and no size to trust; a program
such as `tar` reads the same file.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from shoal.bundle import (
    INSTALLER_NAME,
    MANIFEST_NAME,
    MAX_BUNDLE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    MAX_PATH_CHARACTERS,
    SIGNATURE_BYTES,
    SIGNATURE_NAME,
    Manifest,
    verify,
)
from shoal.durable_file import sync_directory
from shoal.errors import BundleRefused

_BLOCK_BYTES: Final = 512
MAX_ARCHIVE_BYTES: Final = MAX_BUNDLE_BYTES + MAX_MANIFEST_BYTES + 8 * _BLOCK_BYTES * MAX_FILES
_PIECE_BYTES: Final = 256 << 10
_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
_TYPE: Final = 156
_FILES, _LONG_NAME = (b"0", b"\0"), b"L"
_PLAIN, _EXECUTABLE = 0o644, 0o755

Sink = Callable[[bytes], object]
Sinks = Callable[[str], AbstractContextManager[Sink]]
"""What takes the bytes of a file, by its path."""


def pack(
    out: BinaryIO, manifest: Manifest, signature: bytes, contents: Mapping[str, bytes | Path]
) -> None:
    """Writes a bundle; the same contents make the same bytes.

    Args:
        out: Where to.
        manifest: What is in it.
        signature: Of the manifest.
        contents: The files by path: their bytes, or where these lie.

    Raises:
        OSError: It can't be written, or a file can't be read.
    """
    made = int(datetime.fromisoformat(manifest.created).timestamp())
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        entries: list[tuple[str, bytes | Path]] = [
            (MANIFEST_NAME, manifest.encode()),
            (SIGNATURE_NAME, signature),
            *((file.path, contents[file.path]) for file in manifest.files),
        ]
        for path, content in entries:
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.mode = made, _mode(path)
            if isinstance(content, Path):
                entry.size = content.stat().st_size
                with content.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def check_archive(path: Path, public_key: bytes | None) -> Manifest:
    """Reads a whole bundle and checks every byte of it.

    Args:
        path: The tar.
        public_key: Whose signature it must have, 32 bytes; None: none is asked for.

    Raises:
        BundleRefused: It can't be read, was changed, or is not signed by that key.
    """

    @contextmanager
    def nowhere(_path: str) -> Iterator[Sink]:
        yield lambda _piece: None

    return _read_archive(path, public_key, nowhere)


def unpack(path: Path, directory: Path, public_key: bytes | None) -> Manifest:
    """Unpacks a bundle, whole or not at all: every byte of it is checked on the way.

    Args:
        path: The tar.
        directory: Must not exist; it does when this returns, and survives a power cut.
        public_key: Whose signature it must have, 32 bytes; None: none is asked for, where the
            way that the bundle came by is trusted.

    Raises:
        BundleRefused: It can't be read, was changed, or is not signed by that key.
        OSError: The directory exists or can't be written.
    """
    staging = directory.with_name(f".{directory.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    if directory.exists():
        raise FileExistsError(f"{directory} exists already")
    staging.mkdir(parents=True)

    @contextmanager
    def sink(name: str) -> Iterator[Sink]:
        target = staging / name
        target.parent.mkdir(exist_ok=True, parents=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, _mode(name)), "wb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())

    try:
        manifest = _read_archive(path, public_key, sink)
        for folder in (staging, *(each for each in staging.rglob("*") if each.is_dir())):
            sync_directory(folder)
        staging.rename(directory)
        sync_directory(directory.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return manifest


def _read_archive(path: Path, public_key: bytes | None, sink: Sinks) -> Manifest:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BundleRefused("files", f"{path}: {error.strerror}") from error
    with file:
        try:
            return _Archive(file).read(public_key, sink)
        except BundleRefused as error:
            raise BundleRefused(error.reason, f"{path}: {error}") from error


class _Archive:
    """A tar that is read once, from its start to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, public_key: bytes | None, sink: Sinks) -> Manifest:
        """Checks everything, and hands on every file."""
        if os.fstat(self._file.fileno()).st_size > MAX_ARCHIVE_BYTES:
            raise BundleRefused("limit", f"over {MAX_ARCHIVE_BYTES} bytes")
        content = self._small(MANIFEST_NAME, MAX_MANIFEST_BYTES)
        signature = self._small(SIGNATURE_NAME, SIGNATURE_BYTES)
        manifest = (
            Manifest.parse(content)
            if public_key is None
            else verify(content, signature, public_key)
        )
        for name, small in ((MANIFEST_NAME, content), (SIGNATURE_NAME, signature)):
            with sink(name) as write:
                write(small)
        for entry in manifest.files:
            self._expect(entry.path, entry.size)
            digest = hashlib.sha256()
            with sink(entry.path) as write:
                for piece in self._pieces(entry.size):
                    digest.update(piece)
                    write(piece)
            if digest.hexdigest() != entry.sha256:
                raise BundleRefused("digest", f"{entry.path} is not what the manifest says")
        while rest := self._some(_PIECE_BYTES):
            if rest.strip(b"\0"):
                raise BundleRefused("files", "it holds more than its manifest says")
        return manifest

    def _small(self, name: str, limit_bytes: int) -> bytes:
        found, size = self._header()
        if found != name:
            raise BundleRefused(
                "malformed",
                f"no bundle: {found[:80]!r} where {name} should be; make one with "
                "`shoal flash bundle`",
            )
        if size > limit_bytes:
            raise BundleRefused("limit", f"{name}: over {limit_bytes} bytes")
        return b"".join(self._pieces(size))

    def _expect(self, path: str, size: int) -> None:
        found = self._header()
        if found != (path, size):
            raise BundleRefused(
                "files",
                f"{found[0][:200]!r} of {found[1]} bytes where the manifest has {path} of {size}",
            )

    def _header(self) -> tuple[str, int]:
        """Name and size of the next file."""
        name, size, kind = self._block()
        if kind == _LONG_NAME:
            if size > MAX_PATH_CHARACTERS + 1:
                raise BundleRefused("limit", f"a path of over {MAX_PATH_CHARACTERS} characters")
            name = b"".join(self._pieces(size)).removesuffix(b"\0")
            _, size, kind = self._block()
        if kind not in _FILES:
            raise BundleRefused("files", f"{name[:100]!r} is not a plain file")
        return name.decode("ascii", "backslashreplace"), size

    def _block(self) -> tuple[bytes, int, bytes]:
        """Name, size and kind of the next header."""
        block = self._exactly(_BLOCK_BYTES)
        if not block.strip(b"\0"):
            raise BundleRefused("files", "it ends before all files of its manifest came")
        try:
            stated, size = int(block[_SUM].strip(b" \0"), 8), int(block[_SIZE].strip(b" \0"), 8)
        except ValueError as error:
            raise BundleRefused("malformed", "not a plain tar") from error
        blanked = block[: _SUM.start] + b" " * 8 + block[_SUM.stop :]
        if sum(blanked) != stated or size < 0:
            raise BundleRefused("malformed", "a header is damaged, or this is not a plain tar")
        return block[_NAME].rstrip(b"\0"), size, block[_TYPE : _TYPE + 1]

    def _pieces(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._exactly(min(left, _PIECE_BYTES))
            left -= len(piece)
            yield piece
        if self._exactly(-size % _BLOCK_BYTES).strip(b"\0"):
            raise BundleRefused("malformed", "something lies between two files")

    def _exactly(self, size: int) -> bytes:
        found = self._some(size)
        if len(found) != size:
            raise BundleRefused("files", "it is cut off")
        return found

    def _some(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise BundleRefused("files", f"can't be read: {error.strerror}") from error


def _mode(path: str) -> int:
    return _EXECUTABLE if path == INSTALLER_NAME else _PLAIN
