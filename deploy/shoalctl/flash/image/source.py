"""Images as they are downloaded: `.img`, `.xz`, `.gz`, `.zst` or `.zip`, read as a stream.

Nothing is ever larger in memory than a few pieces of the image: every decompressor is asked for a
bounded number of bytes, whatever the compressed file claims.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shoal.errors import ConfigError, FlashFailed
from shoalctl.flash.image.decompress import READ_BYTES, Decompressor, Gzip, Xz, Zstd, unpacked
from shoalctl.flash.image.xz_index import xz_size

CHUNK_BYTES = 4 << 20
"""An image is read, written and verified in pieces of this size."""

_MAGIC_BYTES = 8


class Compression(StrEnum):
    """How an image file is compressed."""

    NONE = "none"
    XZ = "xz"
    GZIP = "gzip"
    ZSTD = "zstd"
    ZIP = "zip"


_MAGIC = {
    b"\xfd7zXZ\x00": Compression.XZ,
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
    b"PK\x03\x04": Compression.ZIP,
}
_FOREIGN = {
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"QFI\xfb": "qcow2 (convert it: qemu-img convert -O raw)",
    b"KDMV": "VMDK (convert it: qemu-img convert -O raw)",
    b"PK\x05\x06": "an empty zip",
}


_DECOMPRESSORS: dict[Compression, Callable[[], Decompressor]] = {
    Compression.XZ: Xz,
    Compression.GZIP: Gzip,
    Compression.ZSTD: Zstd,
}


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image file.

    Example:
        >>> source = ImageSource.open(Path("raspios.img.xz"))
        >>> for chunk in source.chunks():  # every one but the last has CHUNK_BYTES
        ...     ...

    Attributes:
        path: The file.
        compression: Recognized by its first bytes, never by its name.
        file_bytes: The size of the file.
        size_bytes: The size of the image, where the format says it for certain.
        member: Its name in a zip.
    """

    path: Path
    compression: Compression
    file_bytes: int
    size_bytes: int | None
    member: str | None = None

    @classmethod
    def open(cls, path: Path) -> ImageSource:
        """Recognizes an image file.

        Raises:
            ConfigError: There is no such file, or it is in no format we read.
            FlashFailed: It is damaged.
        """
        try:
            with path.open("rb") as file:
                magic = file.read(_MAGIC_BYTES)
                file_bytes = file.seek(0, 2)
        except OSError as error:
            raise ConfigError(f"can't read the image {path}: {error.strerror}") from error
        for start, name in _FOREIGN.items():
            if magic.startswith(start):
                raise ConfigError(f"{path} is {name}: give an .img, .xz, .gz, .zst or .zip")
        if not file_bytes:
            raise ConfigError(f"{path} is empty: download the image again")
        found = (kind for start, kind in _MAGIC.items() if magic.startswith(start))
        compression = next(found, Compression.NONE)
        member, size_bytes = None, None
        if compression is Compression.NONE:
            _refuse_a_name_that_lies(path)
            size_bytes = file_bytes
        elif compression is Compression.XZ:
            size_bytes = xz_size(path)
        elif compression is Compression.ZIP:
            member, size_bytes = _zip_member(path)
        return cls(path, compression, file_bytes, size_bytes, member)

    def sha256(self, advance: Callable[[int], None] = lambda _: None) -> str:
        """The digest of the file as it was downloaded, in hexadecimal.

        Raises:
            FlashFailed: The file can't be read.
        """
        digest = hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                while block := file.read(CHUNK_BYTES):
                    digest.update(block)
                    advance(len(block))
        except OSError as error:
            raise FlashFailed(f"can't read the image {self.path}: {error.strerror}") from error
        return digest.hexdigest()

    def chunks(self) -> Generator[bytes, None, None]:
        """The image in pieces of `CHUNK_BYTES`; only the last may be shorter.

        Raises:
            FlashFailed: The file is damaged, cut short, or wants too much memory.
        """
        collected = bytearray()
        for piece in self._pieces():
            collected += piece
            while len(collected) >= CHUNK_BYTES:
                yield bytes(collected[:CHUNK_BYTES])
                del collected[:CHUNK_BYTES]
        if collected:
            yield bytes(collected)

    def _pieces(self) -> Iterator[bytes]:
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(self.path.open("rb"))
                if self.compression is Compression.NONE:
                    while block := file.read(READ_BYTES):
                        yield block
                elif self.compression is Compression.ZIP:
                    archive = stack.enter_context(zipfile.ZipFile(file))
                    member = stack.enter_context(archive.open(str(self.member)))
                    while block := member.read(READ_BYTES):
                        yield block
                else:
                    yield from unpacked(file, _DECOMPRESSORS[self.compression])
        except (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
            raise FlashFailed(
                f"{self.path} is damaged or cut short ({error}): download the image again"
            ) from error
        except OSError as error:
            raise FlashFailed(f"can't read {self.path}: {error.strerror or error}") from error


def _zip_member(path: Path) -> tuple[str, int]:
    try:
        with zipfile.ZipFile(path) as archive:
            files = [entry for entry in archive.infolist() if not entry.is_dir()]
    except (zipfile.BadZipFile, OSError) as error:
        raise FlashFailed(f"{path} is a damaged zip ({error}): download it again") from error
    images = [entry for entry in files if entry.filename.lower().endswith((".img", ".raw"))]
    candidates = images or (files if len(files) == 1 else [])
    if len(candidates) != 1:
        names = ", ".join(entry.filename for entry in files[:5]) or "nothing"
        raise ConfigError(f"{path} must hold exactly one .img, and it holds {names}: unpack it")
    if candidates[0].flag_bits & 1:
        raise ConfigError(f"{path} is encrypted: unpack it")
    return candidates[0].filename, candidates[0].file_size


def _refuse_a_name_that_lies(path: Path) -> None:
    if path.suffix.lower() in {".xz", ".gz", ".zst", ".zip"}:
        raise ConfigError(
            f"{path} is called {path.suffix}, but isn't: download the image again "
            "(perhaps this is a web page), or name it .img if it is one"
        )
