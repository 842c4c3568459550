"""Files of a FAT file system inside a file or disk, through mtools: no mount, and no root."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shoal.errors import ConfigError, FlashFailed

MAX_READ_BYTES = 1 << 20
"""The largest file of a boot partition that is read into memory."""

_FREE = re.compile(r"(\d[\d ]*) bytes free", re.ASCII)
_TIMEOUT_S = 600
_EPOCH_S = 946684800
"""What files are dated: a card made twice from the same settings has the same bytes."""


@dataclass(frozen=True, slots=True)
class FatHeader:
    """What the first sector of a FAT file system says.

    Attributes:
        label: Its name, in the case it was written in; empty if it has none.
        volume_id: Its serial number as Linux writes it, e.g. `1A2B-3C4D`.
    """

    label: str
    volume_id: str


def read_fat_header(sector: bytes) -> FatHeader | None:
    """Reads the first 512 bytes of a partition; None when they begin no FAT file system."""
    if len(sector) < 512 or sector[510:512] != b"\x55\xaa":  # noqa: PLR2004 - one sector
        return None
    if sector[82:87] == b"FAT32":
        serial, label = sector[67:71], sector[71:82]
    elif sector[54:58] == b"FAT1":
        serial, label = sector[39:43], sector[43:54]
    else:
        return None
    name = label.decode("ascii", "replace").rstrip()
    number = int.from_bytes(serial, "little")
    return FatHeader("" if name == "NO NAME" else name, f"{number >> 16:04X}-{number & 0xFFFF:04X}")


@dataclass(frozen=True, slots=True)
class FatVolume:
    """A FAT file system at an offset of a file or disk.

    Example:
        >>> volume = FatVolume(Path("card.img"), offset_bytes=1 << 20)
        >>> volume.write("user-data", b"#cloud-config")
        >>> volume.read("user-data")
        b'#cloud-config'

    Attributes:
        image: The file or disk.
        offset_bytes: Where in it the file system begins.
    """

    image: Path
    offset_bytes: int = 0

    def names(self, directory: str = "") -> frozenset[str]:
        """The files and directories in a directory; those in capitals only, in lower case.

        Raises:
            FlashFailed: The file system is damaged.
        """
        listing = self._read("mdir", "-b", "-a", f"::/{directory}").decode("utf-8", "replace")
        names = (line.rstrip("/").rpartition("/")[2] for line in listing.splitlines() if line)
        return frozenset(name.lower() if name.isupper() else name for name in names if name)

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FlashFailed: There is no such file, or it is too large, or can't be read.
        """
        content = self._read("mtype", f"::/{name}")
        if len(content) > MAX_READ_BYTES:
            raise FlashFailed(f"{name} in the boot partition has {len(content)} bytes: too many")
        return content

    def sha256(self, name: str) -> str:
        """The digest of a file, in hexadecimal, whatever its size.

        Raises:
            FlashFailed: There is no such file, or it can't be read.
        """
        with tempfile.TemporaryFile() as content:
            self._run("mtype", f"::/{name}", out=content)
            content.seek(0)
            return hashlib.file_digest(content, "sha256").hexdigest()

    def write(self, name: str, content: bytes | Path) -> None:
        """Writes a file, over the one of that name if there is one.

        Raises:
            FlashFailed: It doesn't fit, or the file system is damaged.
        """
        free_bytes = self._free_bytes()
        count = content.stat().st_size if isinstance(content, Path) else len(content)
        if count > free_bytes + self._bytes_of(name):
            raise FlashFailed(
                f"the image's boot partition is full: {name} has {count:,} bytes, and "
                f"{free_bytes:,} are free; take an image with a larger one, or leave something out"
            )
        if isinstance(content, Path):
            self._run("mcopy", "-o", str(content), f"::/{name}")
        else:
            self._run("mcopy", "-o", "-", f"::/{name}", stdin=content)

    def _free_bytes(self) -> int:
        """What is not taken; all there is if mtools does not say."""
        listing = self._read("mdir", "::/").decode("ascii", "replace")
        found = _FREE.search(listing)
        return int(found[1].replace(" ", "")) if found else sys.maxsize

    def _bytes_of(self, name: str) -> int:
        """The size of a file of the root; 0 where there is none."""
        if name.rpartition("/")[0] or name.lower() not in {each.lower() for each in self.names()}:
            return 0
        with tempfile.TemporaryFile() as content:
            self._run("mtype", f"::/{name}", out=content)
            return os.fstat(content.fileno()).st_size

    def make_directory(self, name: str) -> None:
        """Makes a directory in the root; one that is there already stays.

        Raises:
            FlashFailed: It doesn't fit, or the file system is damaged.
        """
        if name not in self.names():
            self._run("mmd", f"::/{name}")

    def remove(self, name: str) -> None:
        """Removes a file, or a directory with what it holds.

        Raises:
            FlashFailed: There is no such file, or the file system is damaged.
        """
        self._run("mdeltree", f"::/{name}")

    def set_label(self, label: str) -> None:
        """Names the file system; its serial number stays.

        Raises:
            FlashFailed: The file system is damaged.
        """
        self._run("mlabel", f"::{label}")

    def _read(self, program: str, *arguments: str) -> bytes:
        with tempfile.TemporaryFile() as out:
            self._run(program, *arguments, out=out)
            out.seek(0)
            return out.read(MAX_READ_BYTES + 1)

    def _run(
        self, program: str, *arguments: str, stdin: bytes = b"", out: IO[bytes] | None = None
    ) -> None:
        command = [_program(program), "-i", f"{self.image}@@{self.offset_bytes}", *arguments]
        try:
            finished = subprocess.run(
                command,
                input=stdin,
                stdout=out or subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
                timeout=_TIMEOUT_S,
                env=_environment(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FlashFailed(f"{program} could not run on {self.image}: {error}") from error
        if finished.returncode:
            raise FlashFailed(_explained(program, arguments, finished.stderr))


def check_installed() -> None:
    """Checks that mtools is there.

    Raises:
        ConfigError: It is not.
    """
    _program("mcopy")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            "seed files are written with mtools, which is not installed: "
            "apt-get install mtools, dnf install mtools, or brew install mtools"
        )
    return found


def _environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
        "MTOOLSRC": os.devnull,
        "MTOOLS_SKIP_CHECK": "1",
        "SOURCE_DATE_EPOCH": str(_EPOCH_S),
        "TZ": "UTC",
    }


def _explained(program: str, arguments: Sequence[str], stderr: bytes) -> str:
    said = " ".join(stderr.decode("utf-8", "replace").split())
    if "full" in said.lower():
        return f"the image's boot partition is full: {arguments[-1]} doesn't fit in it"
    return f"the boot partition: {program} {arguments[-1]} failed: {said}"
